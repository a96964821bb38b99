//! Whether host and running programs see each other's writes, soon, and in order.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use millrace_core::Residence as _;

use super::Settled;

/// Questions and answers,
const ROUNDS: u32 = 4000;
/// or so many, once they took so long: on a busy machine each of them waits for the device's thread to have its turn.
const FEWER: (u32, Duration) = (200, Duration::from_millis(200));
/// How long one may take: most of it is the driver that compiles.
const PATIENCE: Duration = Duration::from_secs(5);
/// Words: the host's number, its message, the device's number, its message, what the device saw out of order, stop.
const ASKED: usize = 0;
const ANSWERED: usize = 64;
const WRONG: usize = 128;
const STOP: usize = 129;
const MESSAGE: usize = 8;

fn source(threads: u32, barriers: bool) -> String {
    let barrier = if barriers { "storageBarrier();" } else { "" };
    let mut read = String::new();
    let mut write = String::new();
    for i in 1..=MESSAGE {
        read +=
            &format!("if (atomicLoad(&words[{}]) != round * {i}u) {{ atomicAdd(&words[{WRONG}], 1u); }}\n", ASKED + i);
        write += &format!("atomicStore(&words[{}], round * {}u);\n", ANSWERED + i, i + 1);
    }
    format!(
        "@group(0) @binding(0) var<storage, read_write> words: array<atomic<u32>>;
        @compute @workgroup_size({threads})
        fn main(@builtin(local_invocation_index) lane: u32) {{
            if (lane == 0u) {{
                var answered = atomicLoad(&words[{ANSWERED}]);
                for (var turn = 0u; turn < 20000u; turn++) {{
                    if (atomicLoad(&words[{STOP}]) != 0u) {{ break; }}
                    let round = atomicLoad(&words[{ASKED}]);
                    if (round != answered) {{
                        {barrier}
                        {read}
                        {write}
                        {barrier}
                        atomicStore(&words[{ANSWERED}], round);
                        answered = round;
                    }}
                }}
            }}
        }}"
    )
}

/// Asks a program some thousand questions through the memory; says what went wrong.
pub(super) fn run(settled: &Settled) -> Result<(), String> {
    let words = settled.shared().ok_or("there is no shared memory")?;
    if words.len() <= STOP {
        return Err("the memory is too small to be looked at".to_owned());
    }
    let text = |error: millrace_core::Error| error.to_string();
    let shape = settled.shape();
    let program = settled.compile(&source(shape.threads, shape.barriers)).map_err(text)?;
    let answered = converse(settled, &program);
    words[STOP].store(1, Ordering::Release);
    let ended = settled.wait(PATIENCE).map_err(text)?;
    let wrong = words[WRONG].load(Ordering::Acquire);
    words[..=STOP].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    answered?;
    match (ended, wrong) {
        (false, _) => Err("a program that was told to stop did not".to_owned()),
        (true, 0) => Ok(()),
        (true, wrong) => {
            Err(format!("the device saw {wrong} words of the host older than what was written after them"))
        }
    }
}

fn converse(settled: &Settled, program: &millrace_core::Code) -> Result<(), String> {
    let words = settled.shared().ok_or("there is no shared memory")?;
    settled.submit(program, 64).map_err(|error| error.to_string())?;
    let mut deadline = Instant::now() + PATIENCE;
    let mut begun = None;
    for round in 1..=ROUNDS {
        for i in 1..=MESSAGE {
            words[ASKED + i].store(round * i as u32, Ordering::Relaxed);
        }
        words[ASKED].store(round, Ordering::Release);
        let mut looks = 0u32;
        while words[ANSWERED].load(Ordering::Acquire) != round {
            looks += 1;
            if looks.is_multiple_of(256) {
                if Instant::now() > deadline {
                    return Err(format!(
                        "what the host writes is not seen by a running program, or not answered (round {round})"
                    ));
                }
                if settled.wait(Duration::ZERO).map_err(|error| error.to_string())? {
                    settled.submit(program, 64).map_err(|error| error.to_string())?;
                }
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        for i in 1..=MESSAGE {
            if words[ANSWERED + i].load(Ordering::Relaxed) != round * (i as u32 + 1) {
                return Err(format!("the host saw an answer's number before its words (round {round})"));
            }
        }
        let now = Instant::now();
        let since = *begun.get_or_insert(now); // the first answer: until then the driver compiled
        if round >= FEWER.0 && now - since > FEWER.1 {
            break;
        }
        deadline = deadline.max(now + PATIENCE / 5);
    }
    Ok(())
}
