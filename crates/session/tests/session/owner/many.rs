//! What many clients of one cell cost: a message that concerns one client costs nothing for the others.

use crate::owner::hall::Hall;
use marram_session::owner::BackupForm;

/// How many ends the owner, and its backup, look at for one message that answers only its speaker, with so many clients.
fn visits(clients: usize, has_backup: bool) -> [u64; 2] {
    let mut hall = if has_backup { Hall::new() } else { Hall::alone(BackupForm::Log) };
    for _ in 0..clients {
        hall.joins("a");
        hall.settles();
    }
    // What concerned all is done.
    for _ in 0..3 {
        hall.says(0, "whisper");
        hall.settles();
    }
    let speaker = clients / 2;
    let (before, heard) = (hall.edge.owner.ends_visited(), hall.heard(speaker).len());
    hall.port(speaker);
    let between = hall.edge.owner.ends_visited();
    hall.says(speaker, "whisper");
    hall.settles();
    // When it speaks its port is looked for once more, among all: a shard has a table of them.
    let visits = hall.edge.owner.ends_visited() - between - (between - before);
    assert_eq!(hall.heard(speaker)[heard..], ["whisper"]);
    if has_backup {
        hall.promotes(usize::MAX);
    }
    [visits, hall.visits_of_last_entry]
}

#[test]
fn a_message_to_one_client_costs_as_much_with_many_as_with_few() {
    for has_backup in [false, true] {
        let few = visits(40, has_backup);
        assert!(few[0] < 100, "{few:?}");
        assert_eq!(visits(150, has_backup), few, "with a backup: {has_backup}");
    }
}
