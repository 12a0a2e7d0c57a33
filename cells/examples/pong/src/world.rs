//! The rules, and the appearance of the world. Does not know clients or clocks. All values are integers: a row and a column are
//! 256 units each.

use marram_play::{Dice, Game, Key};

const UNIT: i32 = 256;

/// Columns and rows.
const WIDTH: i32 = 60;
const HEIGHT: i32 = 20;

/// Rows of a paddle.
const PADDLE: i32 = 4;
/// Columns of the two paddles.
const LEFT: i32 = 1;
const RIGHT: i32 = WIDTH - 2;

/// Movement of a paddle per tick: 24 rows a second for a player, 14 for the edge, so that the edge can be beaten.
const PLAYER_SPEED: i32 = 102;
const EDGE_SPEED: i32 = 60;

/// Movement of the ball per tick: 40 columns a second at first, and a sixteenth more after every hit.
const BALL_SPEED: i32 = 170;
const BALL_SPEED_MAX: i32 = 480;
const _: () =
    assert!(BALL_SPEED_MAX < 2 * UNIT, "a tick does not carry the ball past a paddle and what is behind it");
/// Steepest angle of the ball: most vertical movement per tick.
const SLOPE_MAX: i32 = 150;

/// Pause before a serve.
const PAUSE_TICKS: u32 = 40;

const POINTS_TO_WIN: u32 = 5;

/// A paddle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Paddle {
    /// Its upper end.
    top: i32,
    /// Movement per tick; negative is up.
    speed: i32,
    has_player: bool,
    points: u32,
}

impl Paddle {
    const fn new(has_player: bool) -> Self {
        Self { top: (HEIGHT - PADDLE) / 2 * UNIT, speed: 0, has_player, points: 0 }
    }

    fn step(&mut self) {
        self.top = (self.top + self.speed).clamp(0, (HEIGHT - PADDLE) * UNIT);
    }

    const fn middle(&self) -> i32 {
        self.top + PADDLE * UNIT / 2
    }
}

/// The ball: its position, and its movement per tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ball {
    x: i32,
    y: i32,
    x_speed: i32,
    y_speed: i32,
}

/// Two paddles and a ball.
pub struct World {
    dice: Dice,
    /// Left, right.
    paddles: [Paddle; 2],
    ball: Ball,
    pause_ticks: u32,
}

impl World {
    /// Puts the ball into the middle; after the pause it flies to this side.
    fn serve(&mut self, to: usize) {
        let x_speed = if to == 0 { -BALL_SPEED } else { BALL_SPEED };
        let slope = i32::try_from(self.dice.below(201)).expect("it is at most 200") - 100;
        self.ball = Ball { x: WIDTH / 2 * UNIT, y: HEIGHT / 2 * UNIT, x_speed, y_speed: slope };
        self.pause_ticks = PAUSE_TICKS;
    }

    /// The edge's paddles follow the ball while it approaches, and return to the middle otherwise.
    fn steer(&mut self) {
        for (side, paddle) in self.paddles.iter_mut().enumerate() {
            if paddle.has_player {
                continue;
            }
            let comes = self.pause_ticks == 0 && (self.ball.x_speed < 0) == (side == 0);
            let wanted = if comes { self.ball.y } else { HEIGHT / 2 * UNIT };
            paddle.speed = (wanted - paddle.middle()).clamp(-EDGE_SPEED, EDGE_SPEED);
        }
    }

    fn fly(&mut self) {
        let ball = &mut self.ball;
        let x_before = ball.x;
        ball.x += ball.x_speed;
        ball.y += ball.y_speed;
        // Bounces off the upper and the lower wall.
        let floor = HEIGHT * UNIT - 1;
        if ball.y < 0 || ball.y > floor {
            ball.y = if ball.y < 0 { -ball.y } else { 2 * floor - ball.y };
            ball.y_speed = -ball.y_speed;
        }
        // The face of a paddle is the side towards the field.
        let (side, face) = if ball.x_speed < 0 { (0, (LEFT + 1) * UNIT) } else { (1, RIGHT * UNIT) };
        let crosses = (x_before < face) != (ball.x < face) || x_before == face;
        let from_middle = ball.y - self.paddles[side].middle();
        if crosses && from_middle.abs() <= PADDLE * UNIT / 2 {
            let speed = (ball.x_speed.abs() * 17 / 16).min(BALL_SPEED_MAX);
            ball.x = face;
            ball.x_speed = if side == 0 { speed } else { -speed };
            // The further from the paddle's middle, the steeper.
            ball.y_speed = (ball.y_speed / 2 + from_middle / 4).clamp(-SLOPE_MAX, SLOPE_MAX);
        }
        if ball.x < 0 || ball.x >= WIDTH * UNIT {
            self.paddles[1 - side].points += 1;
            self.serve(side);
        }
    }
}

impl Game for World {
    const NAME: &'static str = "pong";
    const SEATS: usize = 2;

    fn new(seed: u64, players: &[bool]) -> Self {
        let has_player = |side: usize| players.get(side).copied().unwrap_or(false);
        let ball = Ball { x: 0, y: 0, x_speed: 0, y_speed: 0 };
        let paddles = [0, 1].map(|side| Paddle::new(has_player(side)));
        let mut world = Self { dice: Dice::new(seed), paddles, ball, pause_ticks: 0 };
        let first = world.dice.below(2);
        world.serve(first);
        world
    }

    fn press(&mut self, seat: usize, key: Key) {
        if let Some(paddle) = self.paddles.get_mut(seat).filter(|paddle| paddle.has_player) {
            paddle.speed = match key {
                Key::Up => -PLAYER_SPEED,
                Key::Down => PLAYER_SPEED,
                Key::Left | Key::Right => 0,
            };
        }
    }

    fn step(&mut self) {
        self.steer();
        self.paddles.iter_mut().for_each(Paddle::step);
        if self.pause_ticks > 0 {
            self.pause_ticks -= 1;
        } else {
            self.fly();
        }
    }

    fn line(&self) -> String {
        let [left, right] = self.paddles;
        let tops = [left.top, right.top].map(|top| top / UNIT);
        let (x, y) = (self.ball.x / UNIT, self.ball.y / UNIT);
        format!("ball {x} {y} paddles {} {} points {} {}", tops[0], tops[1], left.points, right.points)
    }

    fn rows(&self) -> Vec<String> {
        let [left, right] = self.paddles;
        let look = |x: i32, y: i32| {
            let is_paddle = |paddle: Paddle| (0..PADDLE).contains(&(y - paddle.top / UNIT));
            match x {
                _ if (x, y) == (self.ball.x / UNIT, self.ball.y / UNIT) => 'O',
                LEFT if is_paddle(left) => '#',
                RIGHT if is_paddle(right) => '#',
                _ if x == WIDTH / 2 && y % 2 == 0 => ':',
                _ => ' ',
            }
        };
        let who = |paddle: Paddle| if paddle.has_player { "player" } else { "edge" };
        let wall = "-".repeat(usize::try_from(WIDTH).expect("it is positive"));
        let mut rows = vec![format!("pong  {} {} : {} {}", who(left), left.points, right.points, who(right))];
        rows.push(wall.clone());
        rows.extend((0..HEIGHT).map(|y| (0..WIDTH).map(|x| look(x, y)).collect()));
        rows.push(wall);
        rows
    }

    fn result(&self) -> Option<String> {
        let [left, right] = self.paddles.map(|paddle| paddle.points);
        let winner = if left > right { "left" } else { "right" };
        (left.max(right) >= POINTS_TO_WIN).then(|| format!("{winner} wins {left} : {right}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(ball: Ball) -> World {
        World { ball, pause_ticks: 0, ..World::new(1, &[true, true]) }
    }

    fn ball(x: i32, y: i32, x_speed: i32, y_speed: i32) -> Ball {
        Ball { x: x * UNIT, y: y * UNIT, x_speed, y_speed }
    }

    #[test]
    fn walls_throw_the_ball_back() {
        let mut up = world(ball(30, 0, BALL_SPEED, -100));
        up.step();
        assert_eq!((up.ball.y, up.ball.y_speed), (100, 100));
        let mut down = world(Ball { y: HEIGHT * UNIT - 1, ..ball(30, 0, BALL_SPEED, 100) });
        down.step();
        assert_eq!((down.ball.y, down.ball.y_speed), (HEIGHT * UNIT - 101, -100));
    }

    #[test]
    fn a_paddle_returns_it_faster_and_steeper_from_its_ends() {
        for (x, x_speed, face) in [(2, -BALL_SPEED, 2), (57, BALL_SPEED, 58)] {
            for (y, slope) in [(10, 0), (11, 64), (9, -64), (12, 128), (8, -128)] {
                let mut world = world(ball(x, y, x_speed, 0));
                while (world.ball.x_speed < 0) == (x_speed < 0) {
                    world.step();
                }
                assert_eq!(world.ball, ball(face, y, -x_speed * 17 / 16, slope), "row {y}");
            }
        }
    }

    #[test]
    fn no_ball_flies_through_a_paddle_at_any_speed_or_place() {
        for speed in BALL_SPEED..=BALL_SPEED_MAX {
            for start in 0..UNIT {
                let mut world = world(Ball { x: 20 * UNIT + start, ..ball(0, 10, -speed, 0) });
                while world.ball.x_speed < 0 {
                    world.step();
                }
                assert_eq!(world.paddles[1].points, 0);
            }
        }
    }

    #[test]
    fn a_ball_that_is_missed_is_a_point_and_the_next_serve_comes_to_the_loser() {
        for (x, x_speed, loser) in [(5, -BALL_SPEED, 0), (55, BALL_SPEED, 1)] {
            let mut world = world(ball(x, 1, x_speed, 0));
            (0..10).for_each(|_| world.step());
            assert_eq!(world.paddles[1 - loser].points, 1);
            assert_eq!((world.ball.x, world.ball.x_speed.signum()), (30 * UNIT, x_speed.signum()));
            let pause = world.pause_ticks;
            (0..pause).for_each(|_| world.step());
            assert_eq!(world.ball.x, 30 * UNIT);
            world.step();
            assert_ne!(world.ball.x, 30 * UNIT);
        }
    }

    #[test]
    fn paddles_run_until_they_are_stopped_and_stay_in_the_field() {
        let mut world = World::new(1, &[true, false]);
        world.press(0, Key::Up);
        (0..5).for_each(|_| world.step());
        assert_eq!(world.paddles[0].top, 8 * UNIT - 5 * PLAYER_SPEED);
        world.press(0, Key::Right);
        world.step();
        assert_eq!(world.paddles[0].top, 8 * UNIT - 5 * PLAYER_SPEED);
        world.press(0, Key::Down);
        (0..200).for_each(|_| world.step());
        assert_eq!(world.paddles[0].top, 16 * UNIT);
        // The edge's own paddle cannot be moved by a player.
        let before = world.paddles[1];
        world.press(1, Key::Up);
        assert_eq!(world.paddles[1], before);
    }

    /// Plays until the end; the player decides at every tick.
    fn play(seed: u64, player: impl Fn(&World) -> Key) -> (String, u32) {
        let mut world = World::new(seed, &[true, false]);
        for tick in 0..200_000 {
            if let Some(result) = world.result() {
                return (result, tick);
            }
            world.press(0, player(&world));
            world.step();
        }
        panic!("it does not end");
    }

    fn keep_up(world: &World) -> Key {
        if world.ball.y < world.paddles[0].middle() - UNIT { Key::Up } else { Key::Down }
    }

    #[test]
    fn whichever_plays_well_beats_the_edge_and_whichever_sleeps_does_not() {
        for seed in 0..20 {
            let (result, ticks) = play(seed, keep_up);
            assert!(result.starts_with("left wins"), "{seed}: {result} after {ticks}");
            let (result, ticks) = play(seed, |_| Key::Left);
            assert!(result.starts_with("right wins") && ticks < 3_600, "{seed}: {result} after {ticks}");
        }
    }

    #[test]
    fn the_picture_shows_all_of_it() {
        let rows = world(ball(7, 3, 0, 0)).rows();
        assert_eq!(rows[0], "pong  player 0 : 0 player");
        assert_eq!(rows[5].find('O'), Some(7));
        let paddles = rows.iter().filter(|row| row[1..].starts_with('#') && row[58..].starts_with('#'));
        assert_eq!(paddles.count(), 4);
        assert!(rows.len() == 23 && rows[1..].iter().all(|row| row.len() == 60));
    }
}
