//! Every rule of laying and every premium, on small boards.

use super::*;

fn words() -> Words {
    Words::new("at\ncat\ncats\nact\nta\nquizzes\noxidize\noxidizes\nto\nso")
}

fn square(name: &str) -> Square {
    Square::from_name(name).unwrap()
}

fn play(word: &str, at: &str, way: &str) -> Play {
    Play { letters: word.as_bytes().to_vec(), at: square(at), is_down: way == "down" }
}

struct Table {
    board: Board,
    words: Words,
}

impl Table {
    fn new() -> Self {
        Self { board: Board::default(), words: words() }
    }

    fn check(&self, rack: &str, it: &Play) -> Result<Laid, Wrong> {
        self.board.check(&self.words, &Rack::new(rack.as_bytes()), it)
    }

    /// Lays a word with a rack of these tiles, and returns its score.
    fn lay(&mut self, rack: &str, word: &str, at: &str, way: &str) -> u32 {
        let laid = self.check(rack, &play(word, at, way)).unwrap();
        self.board.lay(&laid);
        laid.score
    }

    /// Why a player with all of its tiles may not lay it.
    fn wrong(&self, word: &str, at: &str, way: &str) -> Wrong {
        self.check(word, &play(word, at, way)).unwrap_err()
    }
}

#[test]
fn premiums_are_where_they_belong() {
    let all = || (0..SIZE).flat_map(|row| (0..SIZE).map(move |column| Square { column, row }));
    let count = |premium| all().filter(|square| square.premium() == premium).count();
    assert_eq!((count(b'W'), count(b'w'), count(b'L'), count(b'l')), (8, 17, 12, 24));
    let some = [("a1", b'W'), ("o8", b'W'), ("h8", b'w'), ("n14", b'w'), ("f2", b'L'), ("j14", b'L')];
    for (name, premium) in some {
        assert_eq!(square(name).premium(), premium, "{name}");
    }
    for name in ["d1", "a12", "g3", "i7", "l8", "h12", "o4"] {
        assert_eq!(square(name).premium(), b'l', "{name}");
    }
}

#[test]
fn the_first_word_covers_the_centre_and_counts_twice() {
    let mut table = Table::new();
    assert_eq!(table.wrong("cat", "a1", "across"), Wrong::First);
    assert_eq!(table.wrong("a", "h8", "across"), Wrong::First);
    assert_eq!(table.wrong("cat", "i8", "across"), Wrong::First);
    assert_eq!(table.lay("cat", "cat", "h8", "across"), 10);
    assert_eq!(Table::new().lay("cat", "cat", "h6", "down"), 10);
}

#[test]
fn words_stay_on_the_board_touch_others_and_are_said_whole() {
    let mut table = Table::new();
    table.lay("cat", "cat", "h8", "across");
    assert_eq!(table.wrong("cats", "m1", "across"), Wrong::Out);
    assert_eq!(table.wrong("cats", "a13", "down"), Wrong::Out);
    assert_eq!(table.wrong("at", "i8", "across"), Wrong::GoesOn);
    assert_eq!(table.wrong("ca", "h8", "across"), Wrong::GoesOn);
    assert_eq!(table.wrong("s", "k8", "across"), Wrong::GoesOn);
    assert_eq!(table.wrong("act", "h8", "across"), Wrong::Taken(square("h8")));
    assert_eq!(table.wrong("cat", "h8", "across"), Wrong::Nothing);
    assert_eq!(table.wrong("cat", "a1", "across"), Wrong::Apart);
    // Corners do not touch.
    assert_eq!(table.wrong("at", "k9", "across"), Wrong::Apart);
    assert_eq!(table.check("xyz", &play("cats", "h8", "across")), Err(Wrong::NotThere));
    assert_eq!(table.check("sss", &play("cats", "h8", "across")).unwrap().rack, Rack::new(b"ss"));
    assert_eq!(table.wrong("catt", "h8", "across"), Wrong::NoWord(b"catt".to_vec()));
}

#[test]
fn cross_words_must_be_words_and_count() {
    let mut table = Table::new();
    table.lay("cat", "cat", "h8", "across");
    assert_eq!(table.wrong("at", "h9", "across"), Wrong::NoWord(b"ca".to_vec()));
    // `so` down from k8 makes `cats` of `cat`.
    assert_eq!(table.lay("so", "so", "k8", "down"), 2 + 6);
    assert_eq!(table.wrong("to", "j9", "across"), Wrong::NoWord(b"tt".to_vec()));
    // `ta` under `at`: two words down. The a on i9 counts twice in both of its words.
    let mut beside = Table::new();
    beside.lay("at", "at", "h8", "across");
    assert_eq!(beside.lay("ta", "ta", "h9", "across"), (1 + 2) + (1 + 1) + (1 + 2));
}

#[test]
fn premiums_count_for_new_tiles_only() {
    let mut table = Table::new();
    table.lay("cat", "cat", "h8", "across");
    assert_eq!(table.lay("s", "cats", "h8", "across"), 3 + 1 + 1 + 1);
    // Down to the s; k5 doubles the word, and seven tiles are a bingo.
    let score = table.check("oxidize", &play("oxidizes", "k1", "down")).unwrap().score;
    assert_eq!(score, (1 + 8 + 1 + 2 + 1 + 10 + 1 + 1) * 2 + 50);
}

#[test]
fn word_premiums_multiply_and_letters_come_first() {
    let mut table = Table::new();
    table.board.tiles[square("c1").index()] = b'i';
    // a1 and h1 triple the word each, d1 doubles its letter.
    let score = table.check("oxdizes", &play("oxidizes", "a1", "across")).unwrap().score;
    assert_eq!(score, (1 + 8 + 1 + 2 * 2 + 1 + 10 + 1 + 1) * 9 + 50);
}

#[test]
fn blanks_count_nothing_and_stay_what_they_were_laid_as() {
    let mut table = Table::new();
    assert_eq!(table.lay("?at", "Cat", "h8", "across"), (1 + 1) * 2);
    assert_eq!(table.lay("s", "cats", "h8", "across"), 1 + 1 + 1);
    assert!(table.board.text().contains(" C a t s"));
    assert_eq!(table.check("?", &play("sO", "k8", "down")).unwrap().score, 1);
    assert_eq!(table.check("o", &play("sO", "k8", "down")), Err(Wrong::NotThere));
    // The blank lies on l8; a letter premium has no effect on a blank.
    let quiz = Table::new().check("quizes?", &play("quizZes", "h8", "across")).unwrap();
    assert_eq!(quiz.score, (10 + 1 + 1 + 10 + 1 + 1) * 2 + 50);
    assert!(quiz.rack.tiles.is_empty());
}
