//! The rules, and the appearance of the world. Does not know clients or clocks.

use std::collections::VecDeque;

use marram_play::{Dice, Game, Key};

/// Columns and rows.
const WIDTH: u8 = 40;
const HEIGHT: u8 = 20;

/// Ten moves a second.
const TICKS_PER_MOVE: u32 = 6;

const LENGTH_AT_START: u8 = 4;

/// Turns that can be queued for later moves: enough for a quick U-turn.
const TURNS_MAX: usize = 2;

/// A square of the field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    x: u8,
    y: u8,
}

impl Place {
    /// The adjacent square in a direction; `None` at a wall.
    fn next(self, direction: Key) -> Option<Self> {
        let Self { x, y } = self;
        let (x, y) = match direction {
            Key::Up => (x, y.checked_sub(1)?),
            Key::Down => (x, y + 1),
            Key::Left => (x.checked_sub(1)?, y),
            Key::Right => (x + 1, y),
        };
        (x < WIDTH && y < HEIGHT).then_some(Self { x, y })
    }

    fn all() -> impl Iterator<Item = Self> {
        (0..HEIGHT).flat_map(|y| (0..WIDTH).map(move |x| Self { x, y }))
    }
}

/// How a game ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Wall,
    Itself,
    /// There is no free square for food.
    Full,
}

/// A snake, its food, and walls around them.
pub struct World {
    dice: Dice,
    /// From head to tail.
    snake: VecDeque<Place>,
    direction: Key,
    turns: VecDeque<Key>,
    food: Place,
    ticks_to_move: u32,
    end: Option<End>,
}

const fn opposite(direction: Key) -> Key {
    match direction {
        Key::Up => Key::Down,
        Key::Down => Key::Up,
        Key::Left => Key::Right,
        Key::Right => Key::Left,
    }
}

impl World {
    /// Puts food on a free square; false if there is none.
    fn feed(&mut self) -> bool {
        let free: Vec<Place> = Place::all().filter(|place| !self.snake.contains(place)).collect();
        if free.is_empty() {
            return false;
        }
        self.food = free[self.dice.below(free.len())];
        true
    }

    /// One move. The tail leaves its square before the head arrives, unless the snake has eaten.
    fn advance(&mut self) -> Result<(), End> {
        self.direction = self.turns.pop_front().unwrap_or(self.direction);
        let head = self.snake[0].next(self.direction).ok_or(End::Wall)?;
        let eats = head == self.food;
        if !eats {
            self.snake.pop_back();
        }
        let is_free = !self.snake.contains(&head);
        self.snake.push_front(head);
        if !is_free {
            return Err(End::Itself);
        }
        if eats && !self.feed() {
            return Err(End::Full);
        }
        Ok(())
    }

    /// The character for a square.
    fn look(&self, place: Place) -> char {
        if self.snake[0] == place {
            '@'
        } else if self.snake.contains(&place) {
            'o'
        } else if self.food == place {
            '*'
        } else {
            ' '
        }
    }
}

impl Game for World {
    const NAME: &'static str = "snake";
    const SEATS: usize = 1;

    /// A snake in the middle that moves right.
    fn new(seed: u64, _: &[bool]) -> Self {
        let head = Place { x: WIDTH / 2, y: HEIGHT / 2 };
        let snake = (0..LENGTH_AT_START).map(|back| Place { x: head.x - back, y: head.y }).collect();
        let mut world = Self {
            dice: Dice::new(seed),
            snake,
            direction: Key::Right,
            turns: VecDeque::new(),
            food: head,
            ticks_to_move: TICKS_PER_MOVE,
            end: None,
        };
        world.feed();
        world
    }

    /// Queues a turn. A turn straight on or back is ignored.
    fn press(&mut self, _: usize, key: Key) {
        let before = *self.turns.back().unwrap_or(&self.direction);
        if key != before && key != opposite(before) && self.turns.len() < TURNS_MAX {
            self.turns.push_back(key);
        }
    }

    fn step(&mut self) {
        self.ticks_to_move -= 1;
        if self.ticks_to_move == 0 {
            self.ticks_to_move = TICKS_PER_MOVE;
            self.end = self.advance().err();
        }
    }

    fn line(&self) -> String {
        let (head, food, length) = (self.snake[0], self.food, self.snake.len());
        format!("head {} {} food {} {} length {length}", head.x, head.y, food.x, food.y)
    }

    fn rows(&self) -> Vec<String> {
        let wall = format!("+{}+", "-".repeat(WIDTH.into()));
        let row = |y| (0..WIDTH).map(|x| self.look(Place { x, y })).collect::<String>();
        let mut rows = vec![format!("snake  length {}", self.snake.len()), wall.clone()];
        rows.extend((0..HEIGHT).map(|y| format!("|{}|", row(y))));
        rows.push(wall);
        rows
    }

    fn result(&self) -> Option<String> {
        let why = match self.end? {
            End::Wall => "hit the wall",
            End::Itself => "bit itself",
            End::Full => "filled the field",
        };
        Some(format!("length {}, {why}", self.snake.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> World {
        World { food: Place { x: 0, y: 0 }, ..World::new(1, &[true]) }
    }

    fn moves(world: &mut World, count: u32) {
        (0..count * TICKS_PER_MOVE).for_each(|_| world.step());
    }

    fn head(world: &World) -> (u8, u8) {
        (world.snake[0].x, world.snake[0].y)
    }

    #[test]
    fn a_snake_continues_and_turns_on_command() {
        let mut world = world();
        moves(&mut world, 3);
        assert_eq!(head(&world), (23, 10));
        world.press(0, Key::Down);
        moves(&mut world, 2);
        assert_eq!(head(&world), (23, 12));
        // A quick U-turn: two turns are queued, a third is not.
        world.press(0, Key::Left);
        world.press(0, Key::Up);
        world.press(0, Key::Right);
        moves(&mut world, 1);
        assert_eq!(head(&world), (22, 12));
        moves(&mut world, 2);
        assert_eq!(head(&world), (22, 10));
        assert_eq!(world.snake.len(), 4);
    }

    #[test]
    fn it_moves_at_every_sixth_tick() {
        let mut world = world();
        (0..5).for_each(|_| world.step());
        assert_eq!(head(&world), (20, 10));
        world.step();
        assert_eq!(head(&world), (21, 10));
    }

    #[test]
    fn it_cannot_turn_back() {
        let mut world = world();
        world.press(0, Key::Left);
        moves(&mut world, 1);
        assert_eq!(head(&world), (21, 10));
        world.press(0, Key::Up);
        world.press(0, Key::Down);
        moves(&mut world, 2);
        assert_eq!(head(&world), (21, 8));
    }

    #[test]
    fn food_makes_it_longer_and_comes_again_elsewhere() {
        let mut world = world();
        world.food = Place { x: 22, y: 10 };
        moves(&mut world, 2);
        assert_eq!(world.snake.len(), 5);
        assert!(!world.snake.contains(&world.food));
        assert_ne!(World::new(1, &[true]).food, World::new(2, &[true]).food);
        assert_eq!(World::new(1, &[true]).food, World::new(1, &[true]).food);
    }

    #[test]
    fn walls_end_it_on_every_side() {
        let straight = [(Key::Right, 19), (Key::Up, 10), (Key::Down, 9)];
        for (key, free) in straight {
            let mut world = world();
            world.press(0, key);
            moves(&mut world, free);
            assert_eq!(world.result(), None, "{key:?}");
            moves(&mut world, 1);
            assert_eq!(world.result().as_deref(), Some("length 4, hit the wall"), "{key:?}");
        }
        let mut world = world();
        world.press(0, Key::Up);
        world.press(0, Key::Left);
        moves(&mut world, 21);
        assert_eq!((head(&world), world.result()), ((0, 9), None));
        moves(&mut world, 1);
        assert_eq!(world.end, Some(End::Wall));
    }

    #[test]
    fn it_may_follow_its_tail_but_not_bite_itself() {
        let turn = |length: u8| {
            let mut world = world();
            world.snake = (0..length).map(|back| Place { x: 20 - back, y: 10 }).collect();
            for key in [Key::Down, Key::Left, Key::Up] {
                world.press(0, key);
                moves(&mut world, 1);
            }
            world.end
        };
        assert_eq!(turn(4), None);
        assert_eq!(turn(5), Some(End::Itself));
    }

    #[test]
    fn a_full_field_is_the_best_end() {
        let mut world = world();
        let row = |y: u8| {
            (0..WIDTH).map(move |x| Place { x: if y.is_multiple_of(2) { x } else { WIDTH - 1 - x }, y })
        };
        world.snake = (0..HEIGHT).flat_map(row).skip(1).collect();
        world.direction = Key::Left;
        moves(&mut world, 1);
        assert_eq!(world.result().as_deref(), Some("length 800, filled the field"));
    }

    #[test]
    fn the_picture_shows_all_of_it() {
        let rows = world().rows();
        assert_eq!(rows[0], "snake  length 4");
        assert_eq!(rows[2], format!("|*{}|", " ".repeat(39)));
        assert_eq!(rows[12], format!("|{}ooo@{}|", " ".repeat(17), " ".repeat(19)));
        assert!(rows.len() == 23 && rows[1..].iter().all(|row| row.len() == 42));
    }
}
