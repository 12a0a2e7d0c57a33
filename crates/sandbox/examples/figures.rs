//! Prints the sandbox's own figures: activation, handlers, checkpoints. `marram bench` prints them with their bars.

use marram_sandbox::{Images, bench};
use marram_session::cell::CheckpointBase;

fn median(mut values: Vec<u64>) -> f64 {
    values.sort_unstable();
    values[values.len() / 2] as f64 / 1000.0
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("marram-figures-{}", std::process::id()));
    let images = Images::open(&dir)?;
    println!("activate, open, first message: {:.2} us", median(bench::activations(&images, 5000)?));
    for checkpointed in [false, true] {
        let lives = median(bench::lives(&images, checkpointed, 3000)?);
        println!("a whole life, {}checkpointed: {lives:.2} us", if checkpointed { "" } else { "not " });
    }
    for bytes in [64, 1024, 65_536] {
        println!(
            "a message of {bytes} B there and back: {:.2} us",
            median(bench::handlers(&images, bytes, 500)?)
        );
    }
    println!("dirty pages by {}", bench::Workload::new(&images, 1 << 20)?.tracking());
    for (mib, pages) in [(1, 1), (1, 16), (10, 1), (10, 16), (10, 256), (64, 1), (64, 16), (64, 256)] {
        let pauses = bench::checkpoint_pauses(&images, mib << 20, pages, 300)?;
        println!("pause, {pages} pages of {mib} MiB: {:.1} us", median(pauses));
    }
    for mib in [1, 10, 43] {
        let mut workload = bench::Workload::new(&images, mib << 20)?;
        let mut best = [u64::MAX; 4];
        for _ in 0..7 {
            let (full, bytes) = workload.checkpoint(CheckpointBase::Image)?;
            let (decode, apply) = workload.restore(&[bytes])?;
            for (best, now) in best.iter_mut().zip([full.pause_ns, full.encode_ns, decode, apply]) {
                *best = (*best).min(now);
            }
        }
        let [pause, encode, decode, apply] = best.map(|ns| ns as f64 / 1e6);
        println!(
            "full, {mib} MiB of noise: pause {pause:.2} ms, encode {encode:.2}, decode {decode:.2}, apply {apply:.2}"
        );
    }
    std::fs::remove_dir_all(dir)?;
    Ok(())
}
