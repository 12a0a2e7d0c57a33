//! A backup that holds what it is fed: pages instead of the log, and what confirms them.

use crate::owner::bench::{Bench, CLIENT, SERVER, charged, policy, set};
use marram_session::{
    cell::CheckpointBase,
    owner::{BackupForm, EpochRelease, Feed, KeeperId, OwnerPhase, OwnerPolicy},
};
use marram_wire::{
    frame::{Frame, Keeps, Stored},
    limits::charge,
};

const KEEPER: KeeperId = KeeperId(7);
const CHANNEL: u32 = 3;

/// A session whose backup gets pages from its second epoch on, if it gets any; the number of the last epoch that was confirmed.
struct Backed {
    bench: Bench,
    epoch: u64,
}

impl Backed {
    fn new(form: BackupForm) -> Self {
        let mut bench = Bench::new(OwnerPolicy { keeps: Keeps::Messages, form, ..policy() });
        bench.step(|owner, now, out| owner.join_group(now, [5; 16], EpochRelease::Confirmed, out));
        bench.step(|owner, _, out| owner.add_replica(KEEPER, CHANNEL, Feed::WarmBackup, out));
        bench.open();
        bench.hand_over();
        bench.started();
        let mut backed = Self { bench, epoch: 0 };
        assert_eq!(backed.bench.phase(), OwnerPhase::Confirming, "the backup must know the generation first");
        backed.epoch();
        backed.bench.opened();
        backed.epoch();
        if form == BackupForm::Pages {
            assert_eq!(backed.bench.copied, Some(CheckpointBase::Image), "the first pages are full");
            let number = backed.sealed();
            backed.applied(number);
        }
        backed.bench.look();
        backed
    }

    /// An epoch ends, and the backup has all that was sent before.
    fn epoch(&mut self) {
        self.epoch += 1;
        self.bench.epoch(self.epoch);
    }

    /// The client says this, and the cell passes it on.
    fn pass(&mut self, text: &'static str) {
        self.bench.say(CLIENT, text);
        self.bench.ran(&[(SERVER, text)]);
    }

    /// An epoch has one message of this charge.
    fn epoch_of(&mut self, charge: u64) {
        self.bench.say(CLIENT, charged(charge));
        self.bench.ran(&[]);
        self.epoch();
    }

    /// What was copied is sealed to so many bytes, and the backup's cell stands there.
    fn sealed_and_applied(&mut self, size: usize) {
        let number = self.bench.taken.as_ref().expect("pages are copied").number;
        assert_eq!(self.bench.checkpointed(vec![0; size]), None);
        let stored = Stored { channel: CHANNEL, bytes: size as u64, complete: Some(number) };
        self.bench.step(|owner, now, out| owner.from_keeper(now, KEEPER, Frame::from(stored), out));
    }

    /// The executor cannot make the copy.
    fn cannot_copy(&mut self) {
        let (cell, number) =
            (self.bench.owner.cell().expect("a cell"), self.bench.taken.take().expect("copied").number);
        let reason = self.bench.answer_checkpoint(cell, number, Err("no memory is left".into()));
        assert_eq!(reason.as_deref(), Some("no memory is left"));
    }

    /// It is time to try that again.
    fn copies_again(&mut self) {
        self.bench.now.mono_ns += 2_000_000_000;
        self.bench.step(|owner, now, out| owner.tick(now, out));
    }

    /// What was copied is sealed, and sent. Returns its number.
    fn sealed(&mut self) -> u32 {
        let number = self.bench.taken.as_ref().expect("pages are copied").number;
        assert_eq!(self.bench.checkpointed(&b"pages"[..]), None);
        number
    }

    /// The backup's cell stands there.
    fn applied(&mut self, number: u32) {
        let stored = Stored { channel: CHANNEL, bytes: 5, complete: Some(number) };
        self.bench.step(|owner, now, out| owner.from_keeper(now, KEEPER, Frame::from(stored), out));
    }

    /// How many lines since the last look are of entries for the backup, and what the server was sent.
    fn look(&mut self) -> (usize, Vec<String>) {
        let lines = self.bench.look();
        let fed = lines.iter().filter(|line| line.starts_with("to keeper 7: Fed")).count();
        let sent = lines.into_iter().filter(|line| line.starts_with("server: output"));
        (fed, sent.collect())
    }
}

#[test]
fn entries_wait_and_outputs_leave_when_the_pages_that_stand_for_them_are_applied() {
    let mut backed = Backed::new(BackupForm::Pages);
    backed.bench.credit(SERVER, 0, 4 * charge(1));
    backed.pass("a");
    backed.pass("b");
    assert_eq!(backed.look(), (0, vec![]), "entries wait");
    backed.epoch();
    assert_eq!(backed.bench.copied, Some(CheckpointBase::Backup));
    let header = backed.bench.taken.clone().expect("it is sealed at once");
    assert_eq!((header.log_offset, header.ports[1].outbox.0.len()), (backed.bench.log_end(), 2));
    let number = backed.sealed();
    assert_eq!(backed.look(), (0, vec![]), "the epoch confirms nothing of it");
    backed.pass("c");
    backed.applied(number);
    let (fed, sent) = backed.look();
    assert!(fed == 0 && sent.len() == 2, "what it stands for, and no more: {sent:?}");
    // The next one builds on it, and stands for what waited.
    backed.epoch();
    let header = backed.bench.taken.as_ref().expect("it is sealed at once");
    assert_eq!((header.base_number, header.log_offset), (number, backed.bench.log_end()));
    let number = backed.sealed();
    backed.applied(number);
    assert_eq!(backed.look().1.len(), 1);
}

#[test]
fn a_copy_that_is_lost_is_no_base_and_the_next_one_is_full() {
    let mut backed = Backed::new(BackupForm::Pages);
    backed.pass("a");
    backed.epoch();
    let lost = backed.bench.taken.take().expect("pages are copied").number;
    // Its ends are asked again before it is sealed.
    backed.bench.open();
    backed.bench.kept[0].live_at(1);
    backed.bench.kept[1].live_at(0);
    backed.bench.hand_over();
    backed.epoch();
    assert_eq!(backed.bench.phase(), OwnerPhase::Running);
    assert_eq!(backed.bench.copied, Some(CheckpointBase::Image));
    let number = backed.sealed();
    assert!(number > lost);
    assert_eq!(backed.look().0, 0, "no entry leaves behind a gap");
}

#[test]
fn a_session_is_handed_over_when_its_pages_have_arrived() {
    let mut backed = Backed::new(BackupForm::Pages);
    backed.pass("a");
    backed.epoch();
    let number = backed.sealed();
    backed.pass("b");
    let mut is_done = true;
    backed.bench.step(|owner, now, out| is_done = owner.hand_over(now, KEEPER, out));
    assert!(!is_done, "pages are on their way");
    backed.bench.look();
    backed.applied(number);
    let lines = backed.bench.look();
    let place = |what: &str| lines.iter().position(|line| line.starts_with(what));
    let (fed, handed) = (place("to keeper 7: Fed"), place("to keeper 7: HandOver"));
    assert!(fed.is_some() && fed < handed, "what waited goes first: {lines:?}");
}

#[test]
fn a_backup_that_cannot_be_given_pages_keeps_what_it_has_and_gets_all_of_them() {
    let mut backed = Backed::new(BackupForm::Pages);
    backed.bench.credit(SERVER, 0, 4 * charge(1));
    backed.pass("a");
    backed.epoch();
    backed.cannot_copy();
    assert_eq!(backed.look(), (0, vec![]), "nothing stands for the output yet");
    backed.copies_again();
    assert_eq!(backed.bench.copied, Some(CheckpointBase::Image));
    let number = backed.sealed();
    backed.applied(number);
    assert_eq!(backed.look().1.len(), 1);
    // It was not the second one in a row.
    backed.pass("b");
    backed.epoch();
    backed.cannot_copy();
    assert_eq!(backed.bench.owner.keepers().count(), 1);
}

#[test]
fn a_backup_that_can_never_be_given_pages_is_lost() {
    let mut backed = Backed::new(BackupForm::Pages);
    backed.pass("a");
    backed.epoch();
    backed.cannot_copy();
    backed.copies_again();
    backed.cannot_copy();
    let lines = backed.bench.look();
    let said = |line: &String| line.contains("keeper 7 lost: Busy");
    assert!(lines.iter().any(said), "not superseded, so a claim follows: {lines:?}");
    assert_eq!(backed.bench.owner.keepers().count(), 0);
}

#[test]
fn the_log_is_sent_until_pages_are_tried() {
    let mut backed = Backed::new(BackupForm::Auto);
    backed.pass("a");
    assert_eq!(backed.look().0, 1);
    assert!(!backed.bench.owner.sends_pages());
}

#[test]
fn a_copy_of_all_pages_does_not_end_a_trial_of_them() {
    let (log, pages) = (1_000, 2_000);
    for has_other in [false, true] {
        let mut backed = Backed::new(BackupForm::Auto);
        while !backed.bench.owner.sends_pages() {
            backed.epoch_of(log);
        }
        // The backup has the session from its start on. Behind a copy of all pages, no page's version is known.
        backed.epoch_of(log);
        assert_eq!(backed.bench.copied, Some(CheckpointBase::Image));
        backed.sealed_and_applied(100 * pages);
        backed.epoch_of(log);
        assert_eq!(backed.bench.copied, Some(CheckpointBase::Backup));
        backed.sealed_and_applied(100 * pages);
        if has_other {
            backed.bench.say(CLIENT, charged(log));
            backed.bench.ran(&[]);
            backed.bench.step(|owner, _, out| owner.add_replica(KeeperId(8), 4, Feed::Moved, out));
            assert_eq!(backed.bench.copied, Some(CheckpointBase::Image));
            backed.sealed_and_applied(100 * pages);
            backed.epoch_of(log);
            assert_eq!(backed.bench.copied, Some(CheckpointBase::Backup));
            backed.sealed_and_applied(100 * pages);
        }
        assert!(backed.bench.owner.sends_pages(), "nothing says what an epoch costs");
        backed.epoch_of(log);
        backed.sealed_and_applied(pages);
        assert!(!backed.bench.owner.sends_pages());
    }
}

#[test]
fn a_session_that_is_copied_with_its_group_goes_on_and_releases_with_it() {
    let mut backed = Backed::new(BackupForm::Pages);
    backed.bench.credit(SERVER, 0, 4 * charge(1));
    backed.pass("a");
    backed.bench.say(CLIENT, "later");
    backed.bench.ran_with(|ran| ran.timers = vec![set(1, 1_000_000_000)]);
    assert!(backed.bench.owner.due_ns().is_some());
    backed.bench.step(|owner, _, _| owner.halt());
    backed.bench.say(CLIENT, "b");
    assert!(!backed.bench.owner.is_busy(), "no entry begins");
    assert_eq!(backed.bench.owner.due_ns(), None, "nor that of a timer");
    backed.epoch();
    let number = backed.sealed();
    assert!(!backed.bench.owner.is_busy() && backed.bench.owner.has_pages_under_way());
    backed.bench.step(|owner, now, out| owner.resume(now, out));
    backed.bench.ran(&[(SERVER, "b")]);
    backed.applied(number);
    assert!(!backed.bench.owner.has_pages_under_way());
    assert_eq!(backed.look(), (0, vec![]), "the pages of other sessions may be missing");
    backed.bench.step(|owner, now, out| owner.release_stored(now, out));
    assert_eq!(backed.look().1.len(), 1, "what was copied, and no more");
}

#[test]
fn pages_that_a_lost_backup_has_stored_release_nothing() {
    let mut backed = Backed::new(BackupForm::Pages);
    backed.bench.credit(SERVER, 0, 4 * charge(1));
    backed.pass("a");
    backed.bench.step(|owner, _, _| owner.halt());
    backed.epoch();
    let number = backed.sealed();
    backed.applied(number);
    backed.bench.step(|owner, now, out| owner.release_as(now, EpochRelease::Held, out));
    backed.bench.step(|owner, now, out| owner.release_stored(now, out));
    assert_eq!(backed.look(), (0, vec![]));
}
