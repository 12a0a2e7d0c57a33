//! docs/tutorial.md, command by command, as written. It runs in separate network and process namespaces, since its ports and the
//! names of the processes that it ends are fixed. A script replaces only the reader's manual steps: waiting, typing, and editing
//! a line.

use crate::support;
use marram_cluster::TempDir;
use std::{
    path::Path,
    process::{Command, Stdio},
};

const TUTORIAL: &str = include_str!("../../../../../docs/tutorial.md");
/// Separate network and process namespaces; no process outlives the first of them.
const APART: [&str; 5] = ["--net", "--pid", "--fork", "--mount-proc", "--kill-child"];

/// The blocks of commands of a step: consecutive lines of commands form a block.
fn blocks(step: &str) -> Vec<String> {
    let begin = TUTORIAL.find(&format!("\n## {step}")).unwrap_or_else(|| panic!("no step {step:?}")) + 1;
    let text = TUTORIAL[begin..].split("\n## ").next().unwrap();
    let mut blocks: Vec<String> = Vec::new();
    let (mut before, mut is_rust) = (false, false);
    for line in text.lines() {
        is_rust ^= line.starts_with("```");
        // The output of `marram dev` is formatted like a command.
        let command = line.strip_prefix("    ").filter(|line| !is_rust && !line.starts_with("==>"));
        match (command, before) {
            (Some(line), true) => blocks.last_mut().unwrap().push_str(&format!("{line}\n")),
            (Some(line), false) => blocks.push(format!("{line}\n")),
            (None, _) => {}
        }
        before = command.is_some();
    }
    blocks
}

/// The line of Rust that the reader adds in the text behind `heading`, and the line after which it goes.
fn edit(heading: &str, after: &'static str) -> (String, &'static str) {
    let (_, rest) = TUTORIAL.split_once(heading).unwrap();
    let (_, rest) = rest.split_once(&format!("on the line after `{after}`")).unwrap();
    let (_, code) = rest.split_once("```rust\n").unwrap();
    (code.split("\n```").next().unwrap().to_owned(), after)
}

/// Bash functions for what a reader waits for and checks.
const BY_HAND: &str = r#"
set -um
fail() { echo "FAILED: $*"; for log in "$TOP"/*.out "$TOP"/tally/*.out "$TOP"/tally/run/*.log; do echo "== $log"; tail -n 15 "$log"; done; exit 1; }
# Until a command succeeds.
until_done() { for _ in $(seq 1200); do if "$@" >/dev/null 2>&1; then return; fi; sleep 0.1; done; fail "never: $*"; }
listens() { grep -qi ":$(printf %04X "$1") 0*:0000 0A" /proc/net/tcp; }
lines() { [ "$(grep -c "$1" "$2")" -ge "$3" ]; }
ip link set lo up
"#;

/// The script: the tutorial's blocks, with checks between them.
fn script() -> String {
    [BY_HAND, &while_it_is_written(), &while_it_runs(), &with_many_clients(), "echo 'the end'\n"].concat()
}

/// Steps 2 and 3, in which the reader writes a cell.
fn while_it_is_written() -> String {
    let [cell] = &blocks("2. A cell")[..] else { panic!("step 2") };
    let [dev, curl] = &blocks("3. Work on it")[..] else { panic!("step 3") };
    let (line, behind) = edit("## 3. Work on it", "self.count += 1;");
    let (dev, curl) = (dev.trim_end(), curl.trim_end());
    format!(
        r#"
echo "== 2"
cd "$TOP"
( set -e
{cell}
) > 2.out 2>&1 || fail step 2
grep -q '1 passed' 2.out || fail 'its test'
cd tally

echo "== 3"
{dev} > ../3.out 2>&1 &
until_done grep -q 'tally is ready: clients connect to 127.0.0.1:8088' ../3.out
mkfifo ../keys ../more
{curl} < ../keys > ../curl.out 2>&1 &
exec 3> ../keys
echo one >&3; until_done grep -q '^1: one' ../curl.out
echo two >&3; until_done grep -q '^2: two' ../curl.out
sed -i '/{behind}/r /dev/stdin' src/lib.rs <<'LINE'
{line}
LINE
until_done grep -q 'deployed: new sessions use it' ../3.out
echo three >&3; until_done grep -q '^3: three' ../curl.out
grep -q 'INFO cell' ../3.out && fail 'an old session has the new version'
{curl} < ../more > ../curl2.out 2>&1 &
exec 4> ../more
echo new >&4; until_done grep -q 'INFO cell: line 1' ../3.out
exec 3>&- 4>&-
kill -INT %1 %2 %3
wait
"#
    )
}

/// The steps from 4 on, in which the cell runs on two edges.
fn while_it_runs() -> String {
    let [run, client] = &blocks("4. Two edges")[..] else { panic!("step 4") };
    let [look] = &blocks("5. Look at it")[..] else { panic!("step 5") };
    let [kill, after, again] = &blocks("6. Kill it")[..] else { panic!("step 6") };
    let [record] = &blocks("7. Take it home")[..] else { panic!("step 7") };
    let [end] = &blocks("8. Put it away")[..] else { panic!("step 8") };
    let (client, python) = client.trim_end().rsplit_once("python3").unwrap();
    format!(
        r#"
echo "== 4"
{run}
{client}
# A reader is slower than an edge that starts: both have the app, and sessions begin on the first.
until_done listens 8080
for edge in a b; do until_done grep -q 'an app is deployed' $edge.log; done
python3{python} > ../client.out 2>&1 &
until_done lines '^3: hello' ../client.out 1

echo "== 5"
{{
{look}}} > ../5.out 2>&1 || fail step 5
[ "$(echo $SESSION | wc -w)" = 1 ] || fail "one session: $SESSION"
until_done sh -c "marram logs --app tally $EDGES | grep -q 'line 3'"

echo "== 6"
COUNT=$(tail -n 1 ../client.out | cut -d: -f1)
{kill}
until_done sh -c "tail -n 1 ../client.out | grep -q '^$((COUNT + 3)):'"
{{
{after}}} > ../6.out 2>&1
grep -q 'gap_us' ../6.out || grep -q 'gap_us' agent.log || fail 'no gap in agent.log'
marram ps $EDGES > ../ps.out 2>&1; [ $? = 4 ] || fail 'exit status of ps'
{again}
COUNT=$(tail -n 1 ../client.out | cut -d: -f1)
until_done sh -c "tail -n 1 ../client.out | grep -q '^$((COUNT + 3)):'"
# Every number once, in order.
cut -d: -f1 ../client.out | awk 'NR != $1 {{ exit 1 }}' || fail 'a number is missing, or there twice'

echo "== 7"
( set -e
{record}
) > ../7.out 2>&1 || fail step 7
grep -q 'the same run' ../7.out || fail 'another run'

echo "== 8"
{end}
until_done sh -c '! pgrep -f "[e]dge --config|[a]gent client|[c]lient.py"'
"#
    )
}

/// The steps from 9 on: a room.
fn with_many_clients() -> String {
    let [new, dev, client] = &blocks("9. A room")[..] else { panic!("step 9") };
    let (line, behind) = edit("## 11. Change it", "\"\" => {}");
    let (dev, client) = (dev.trim_end(), client.trim_end());
    format!(
        r#"
echo "== 9"
cd "$TOP"
( set -e
{new}
) > 9.out 2>&1 || fail step 9
cd chat
{dev} > ../9-dev.out 2>&1 &
DEV=$!
until_done grep -q 'chat is ready' ../9-dev.out
curl -s --noproxy '*' http://127.0.0.1:8088 | grep -q '<title>room</title>' || fail 'the page'
mkfifo ../ann ../bob
{client} < ../ann > ../ann.out 2>&1 &
ANN=$!
exec 5> ../ann
until_done grep -q '^. welcome' ../ann.out
echo /name ann >&5; until_done grep -q 'you are ann; here: ann' ../ann.out
echo hello >&5; until_done grep -q '^ann: hello' ../ann.out

echo "== 11"
sed -i '/{behind}/r /dev/stdin' src/lib.rs <<'LINE'
{line}
LINE
until_done grep -q 'deployed: new sessions use it' ../9-dev.out
{client} < ../bob > ../bob.out 2>&1 &
BOB=$!
exec 6> ../bob
echo /name bob >&6; until_done grep -q 'you are bob; here: bob' ../bob.out
echo /dice >&6; until_done grep -q '^bob: rolls [1-6]' ../bob.out
echo /dice >&5; until_done grep -q 'there is no /dice' ../ann.out
exec 5>&- 6>&-
kill -INT $ANN $BOB $DEV
wait
"#
    )
}

#[test]
fn every_command_of_the_tutorial_does_what_it_says() {
    support::begin();
    for program in ["unshare", "pgrep", "curl", "nc", "python3", "ip"] {
        if !support::is_here(program) {
            return;
        }
    }
    let may = Command::new("unshare").args(APART).arg("true").output();
    if !may.is_ok_and(|output| output.status.success()) {
        return support::skip::skip("it takes the right to make namespaces");
    }
    let place = TempDir::new("tutorial").unwrap();
    let script = place.write("tutorial.sh", script()).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_marram")).parent().unwrap().display();
    let path = std::env::var("PATH").unwrap();
    let output = Command::new("unshare")
        .args(APART)
        .arg("bash")
        .arg(script)
        .stdin(Stdio::null())
        .env("TOP", place.path())
        .env("PATH", format!("{program}:{path}"))
        .env("CARGO_NET_OFFLINE", "true")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS")
        .output()
        .unwrap();
    let said = [&output.stdout[..], &output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("the end"), "{said}");
}
