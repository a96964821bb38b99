//! Tuning: the fastest way wins, bad ways drop out, and files can be trusted.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::print_stdout, reason = "processes tell the test that started them")]

mod support;

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use millrace::{
    Access, CpuKernel, Device, KernelSpec,
    tensor::{
        Result, Tensors,
        tune::{Case, Contest, Fate, Op, Tuner, Tuning, Way, Work},
    },
};
use support::fresh_devices;
use tempfile::tempdir;

fn cpu() -> Device {
    millrace::runtime().open("cpu").unwrap()
}

/// Does something to a tensor as often as said, so that more takes longer.
fn repeated(times: usize) -> impl Fn(&Tensors) -> Result<Work> {
    move |tensors| {
        let x = tensors.rand(&[20_000], 1)?;
        Ok(Box::new(move || (1..times).try_fold(x.neg()?, |x, _| x.abs()?.neg())))
    }
}

#[test]
fn the_fastest_way_wins_and_slow_ones_are_not_timed_to_the_end() {
    for device in fresh_devices() {
        let ways = [Way::new("six", repeated(6)), Way::new("sixty", repeated(60)), Way::new("one", repeated(1))];
        let contest = || Contest::on(&device).limit(Duration::from_secs(5)).run(&ways).unwrap();
        // On a busy machine the fastest may not win often enough to be believed.
        let outcome = (0..5).map(|_| contest()).find(|outcome| outcome.chosen != 0).unwrap();
        assert!(outcome.complete);
        assert_eq!(outcome.trials[outcome.chosen].name, "one", "{outcome:?}");
        assert!(outcome.gain() > 1.5, "{outcome:?}");
        assert!(outcome.trials[1].samples < outcome.trials[2].samples, "{outcome:?}");
        assert_eq!(outcome.trials[0].fate, Fate::Slower);
    }
}

#[test]
fn equal_ways_leave_the_usual_one() {
    let chosen = |_| {
        let ways = [Way::new("usual", repeated(3)), Way::new("the same", repeated(3))];
        Contest::on(&cpu()).run(&ways).unwrap().chosen
    };
    // Noise decides seldom.
    assert!((0..5).map(chosen).sum::<usize>() <= 1);
}

/// A way whose kernel does something bad.
fn bad(name: &'static str, code: fn()) -> impl Fn(&Tensors) -> Result<Work> {
    move |tensors| {
        let spec =
            KernelSpec::new(name).binding::<f32>("out", Access::Overwrite).cpu(CpuKernel::whole(move |_| code()));
        let (device, stream) = (tensors.device().clone(), tensors.stream().clone());
        let (kernel, buffer) = (device.kernel(&spec)?, device.allocate(4)?);
        let x = tensors.zeros(&[20_000])?;
        Ok(Box::new(move || {
            stream.enqueue(kernel.launch().bind(&buffer))?;
            x.contiguous()
        }))
    }
}

/// Longer than everything else takes, also where the machine is slow and nothing is optimized.
const HANG: Duration = Duration::from_secs(30);

#[test]
fn ways_that_crash_hang_or_are_wrong_are_dropped_and_reported() {
    let device = cpu();
    let panics = |_: &Tensors| -> Result<Work> { panic!("while it is prepared") };
    let ways = [
        Way::new("usual", repeated(20)),
        Way::new("panics", panics),
        Way::new("kernel panics", bad("panics", || panic!("inside the kernel"))),
        Way::new("hangs", bad("hangs", || std::thread::sleep(HANG))),
        Way::new("wrong", |tensors| {
            let x = tensors.rand(&[20_000], 2)?;
            Ok(Box::new(move || x.neg()))
        }),
        Way::new("other shape", |tensors| {
            let x = tensors.rand(&[20_001], 1)?;
            Ok(Box::new(move || x.neg()))
        }),
        Way::new("good", repeated(2)),
    ];
    let start = Instant::now();
    let outcome = Contest::on(&device).patience(Duration::from_millis(300)).run(&ways).unwrap();
    assert!(start.elapsed() < HANG, "nobody waits for the one that hangs");
    let reason = |n: usize| match &outcome.trials[n].fate {
        Fate::Dropped(reason) => reason.clone(),
        fate => panic!("{} was not dropped: {fate:?}", outcome.trials[n].name),
    };
    assert!(reason(1).contains("while it is prepared"), "{}", reason(1));
    assert!(reason(2).contains("inside the kernel"), "{}", reason(2));
    assert!(reason(3).contains("no progress"), "{}", reason(3));
    assert!(reason(4).contains("wrong result: element"), "{}", reason(4));
    assert!(reason(5).contains("20001 elements instead of 20000"), "{}", reason(5));
    assert_eq!(outcome.chosen, 6);
    // The device itself has seen nothing of it.
    device.stream().unwrap().synchronize().unwrap();
    assert_eq!(device.health().state, millrace::HealthState::Healthy);
}

#[test]
fn a_usual_way_that_fails_is_an_error_and_too_little_time_leaves_it() {
    let error = Contest::on(&cpu()).run(&[Way::new("usual", bad("bad", || panic!("no")))]).unwrap_err();
    assert!(error.to_string().contains("the usual way, usual, cannot be timed"), "{error}");
    assert!(Contest::on(&cpu()).run(&[]).is_err());
    let ways = [Way::new("six", repeated(6)), Way::new("one", repeated(1))];
    let outcome = Contest::on(&cpu()).limit(Duration::ZERO).run(&ways).unwrap();
    assert_eq!((outcome.chosen, outcome.complete), (0, false));
}

/// A matrix product, and what the tuner counted.
fn product(device: &Device, tuner: &Tuner) -> Vec<f32> {
    let tensors = Tensors::tuned(device, tuner).unwrap();
    let x = tensors.rand(&[48, 48], 1).unwrap();
    x.matmul(&x).unwrap().to_vec().unwrap()
}

#[test]
fn results_are_found_again_by_another_tuner_and_can_be_forbidden() {
    let folder = tempdir().unwrap();
    for device in fresh_devices() {
        let case: Case = "matmul 1x48x48x48".parse().unwrap();
        let tuner = Tuner::new(&device, Some(folder.path()), Tuning::Kept);
        assert!(tuner.results().is_empty());
        let outcome = tuner.tune(&device, &case).unwrap();
        assert!(outcome.complete, "{outcome:?}");
        assert_eq!(tuner.warnings(), [""; 0]);

        let again = Tuner::new(&device, Some(folder.path()), Tuning::Kept);
        assert_eq!(again.results(), tuner.results());
        assert_eq!(again.results()["matmul 1x64x64x64"].way, outcome.trials[outcome.chosen].name);
        let same = product(&device, &again);
        assert_eq!((again.stats().hits, again.stats().misses), (1, 0));

        let never = Tuner::new(&device, Some(folder.path()), Tuning::Never);
        let usual = product(&device, &never);
        assert_eq!((never.stats().hits, never.stats().misses), (0, 0));
        for (a, b) in same.iter().zip(&usual) {
            assert!((a - b).abs() < 1e-3);
        }
        again.clear().unwrap();
        assert!(Tuner::new(&device, Some(folder.path()), Tuning::Kept).results().is_empty());
    }
}

#[test]
fn at_run_time_only_what_is_allowed_is_measured_and_that_once() {
    let (folder, device) = (tempdir().unwrap(), cpu());
    let kept = Tuner::new(&device, Some(folder.path()), Tuning::Kept);
    product(&device, &kept);
    assert_eq!(kept.stats().measured, 0);
    let tuner = Tuner::new(&device, Some(folder.path()), Tuning::Measure).limit(Duration::from_millis(200));
    product(&device, &tuner);
    let first = tuner.stats();
    assert_eq!((first.measured, first.misses), (1, 1), "the product");
    product(&device, &tuner);
    assert_eq!((tuner.stats().measured, tuner.stats().hits), (1, first.hits + 1));
}

#[test]
fn every_way_of_every_operation_gives_the_same_result() {
    let cases = [
        (Op::Launch, "launch tanh_f32 100000"),
        (Op::Launch, "launch add_i32 100000"),
        (Op::Reduce, "reduce sum_f32 1x200000"),
        (Op::Reduce, "reduce max_f32 300x700"),
        (Op::Matmul, "matmul 1x256x256x64"),
        (Op::Matmul, "matmul 3x32x32x64"),
        (Op::Fft, "fft 4096x3"),
        (Op::Spmv, "spmv 20000x100000"),
    ];
    for device in fresh_devices() {
        for (op, text) in cases {
            let ways = op.ways(device.info().kind);
            let folder = tempdir().unwrap();
            let tuner = Tuner::new(&device, Some(folder.path()), Tuning::Kept).limit(Duration::from_millis(100));
            let outcome = tuner.tune(&device, &text.parse().unwrap()).unwrap();
            assert_eq!(outcome.trials.len(), ways.len());
            for trial in &outcome.trials {
                assert!(!matches!(trial.fate, Fate::Dropped(_)), "{text} on {}: {trial:?}", device.info().id);
            }
        }
    }
}

#[test]
fn ways_differ_in_what_they_launch() {
    let runtime = millrace::runtime();
    if let Ok(gpu) = runtime.open("gpu") {
        let launches = |way: &str| {
            let tuner = Tuner::fixed(&gpu, Op::Reduce, way).unwrap();
            let tensors = Tensors::tuned(&gpu, &tuner).unwrap();
            let x = tensors.rand(&[4, 40_000], 1).unwrap();
            x.sum(&[1]).unwrap().to_vec::<f32>().unwrap();
            let before = gpu.counts().launches;
            let sum = x.sum(&[1]).unwrap().to_vec::<f32>().unwrap();
            (gpu.counts().launches - before, sum)
        };
        let (usual, few) = (launches("usual"), launches("few chunks"));
        assert!(launches("many chunks").0 >= usual.0);
        for (a, b) in usual.1.iter().zip(&few.1) {
            assert!((a - b).abs() < 1.0);
        }
    }
    assert!(Tuner::fixed(&cpu(), Op::Launch, "no such way").is_none());
}

#[test]
fn files_that_are_damaged_foreign_or_old_are_ignored_with_a_warning() {
    let (folder, device) = (tempdir().unwrap(), cpu());
    let tuner = Tuner::new(&device, Some(folder.path()), Tuning::Kept);
    tuner.tune(&device, &"reduce sum_f32 1x4096".parse().unwrap()).unwrap();
    let path = tuner.path().unwrap();
    let good = std::fs::read_to_string(&path).unwrap();
    let version = format!("\"version\": \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(good.contains(&version));
    let name = &device.info().name;
    let changed = [
        (good[..good.len() / 2].to_owned(), "damaged"),
        (String::new(), "damaged"),
        ("[1, 2]".to_owned(), "damaged"),
        (good.replace(&version, "\"version\": \"0.0.0\""), "of version 0.0.0"),
        (good.replace(name.as_str(), "Another"), "of another device"),
        (good.replace("\"ns\": ", "\"ns\": -"), "are no times"),
    ];
    for (text, why) in changed {
        assert_ne!(text, good);
        std::fs::write(&path, text).unwrap();
        let tuner = Tuner::new(&device, Some(folder.path()), Tuning::Kept);
        assert!(tuner.results().is_empty());
        assert!(tuner.warnings()[0].contains(why), "{:?}", tuner.warnings());
        product(&device, &tuner); // goes its usual way
        // And it is replaced by the next result.
        tuner.tune(&device, &"reduce sum_f32 1x4096".parse().unwrap()).unwrap();
        assert_eq!(Tuner::new(&device, Some(folder.path()), Tuning::Kept).results().len(), 1);
    }
    // Cases and ways that there are not are left alone.
    std::fs::write(&path, good.replace("reduce sum_f32", "origami sum_f32")).unwrap();
    let tuner = Tuner::new(&device, Some(folder.path()), Tuning::Kept);
    assert!(tuner.results().is_empty() && tuner.warnings().is_empty());
}

#[test]
fn a_folder_that_cannot_be_written_is_a_warning() {
    let (folder, device) = (tempdir().unwrap(), cpu());
    let file = folder.path().join("a file");
    std::fs::write(&file, "no folder").unwrap();
    let tuner = Tuner::new(&device, Some(&file), Tuning::Kept);
    let outcome = tuner.tune(&device, &"reduce sum_f32 1x4096".parse().unwrap()).unwrap();
    assert!(outcome.complete);
    assert!(tuner.warnings().iter().any(|warning| warning.contains("cannot be written")), "{:?}", tuner.warnings());
    assert_eq!(tuner.results().len(), 1, "this process knows it all the same");
}

#[test]
fn two_that_tune_at_once_keep_what_both_found() {
    let folder = tempdir().unwrap();
    let cases: Vec<Case> = (0..12).map(|n| format!("reduce sum_f32 1x{}", 256 << n).parse().unwrap()).collect();
    let tune = |cases: &[Case]| {
        let device = cpu();
        let tuner = Tuner::new(&device, Some(folder.path()), Tuning::Kept).limit(Duration::from_millis(30));
        cases.iter().for_each(|case| drop(tuner.tune(&device, case).unwrap()));
        tuner.results()
    };
    let (mut first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| tune(&cases[..6]));
        let second = tune(&cases[6..]);
        (first.join().unwrap(), second)
    });
    first.extend(second);
    let after = Tuner::new(&cpu(), Some(folder.path()), Tuning::Kept).results();
    assert_eq!(after, first);
    assert!(!after.is_empty());
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "the file and its lock: {left:?}");
}

/// In a process that a test started: the folder it shall work in.
fn told() -> Option<PathBuf> {
    std::env::var_os("MILLRACE_TEST_FOLDER").map(PathBuf::from)
}

/// Runs one test of this program in another process, which is told a folder.
fn process(test: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env("MILLRACE_TEST_FOLDER", folder);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// A contest of which a way ends the process.
fn deadly(device: &Device, tuner: &Tuner, usual: fn()) -> Result<millrace::tensor::tune::Outcome> {
    let ways = [
        Way::new("usual", bad("usual", usual)),
        Way::new("aborts", bad("aborts", || std::process::abort())),
        Way::new("good", bad("good", || ())),
    ];
    Contest::on(device).noted(tuner, "deadly").run(&ways)
}

#[test]
fn a_way_that_ends_the_process_is_dropped_by_the_next_one() {
    let device = cpu();
    if let Some(folder) = told() {
        let tuner = Tuner::new(&device, Some(&folder), Tuning::Kept);
        let outcome = deadly(&device, &tuner, || std::thread::sleep(Duration::from_micros(300))).unwrap();
        println!("\nended {:?}, timed {}", outcome.trials[1].fate, outcome.trials[2].samples);
        return;
    }
    let folder = tempdir().unwrap();
    let run = || {
        let output = process("a_way_that_ends_the_process_is_dropped_by_the_next_one", folder.path()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (survived, said) = run();
    assert!(!survived && !said.contains("ended"), "{said}");
    for _ in 0..2 {
        let (survived, said) = run();
        assert!(survived && said.contains("ended Dropped(\"it ended the process\"), timed "), "{said}");
        assert!(!said.contains("timed 0"), "the rest is measured: {said}");
    }
    // It is told of, in another contest nothing is known of it, and it can be forgotten.
    let tuner = Tuner::new(&device, Some(folder.path()), Tuning::Kept);
    assert!(tuner.ended()["deadly"].contains("aborts") && tuner.ended().len() == 1);
    assert!(tuner.tune(&device, &"reduce sum_f32 1x4096".parse().unwrap()).unwrap().complete);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "the file and its lock: {left:?}");
    tuner.clear().unwrap();
    assert!(Tuner::new(&device, Some(folder.path()), Tuning::Kept).ended().is_empty());
}

#[test]
fn a_result_whose_way_ends_the_process_later_is_not_used_any_longer_and_a_usual_way_is_an_error() {
    let device = cpu();
    if let Some(folder) = told() {
        let tuner = Tuner::new(&device, Some(&folder), Tuning::Kept);
        let _ = deadly(&device, &tuner, || std::process::abort());
        return;
    }
    let folder = tempdir().unwrap();
    let name = "a_result_whose_way_ends_the_process_later_is_not_used_any_longer_and_a_usual_way_is_an_error";
    assert!(!process(name, folder.path()).output().unwrap().status.success());
    let tuner = Tuner::new(&device, Some(folder.path()), Tuning::Kept);
    let error = deadly(&device, &tuner, || ()).unwrap_err();
    assert!(error.to_string().contains("the usual way, usual, cannot be timed: it ended the process"), "{error}");
    // A result that is there, and then a process that does not come back from measuring it again.
    tuner.tune(&device, &"reduce sum_f32 1x4096".parse().unwrap()).unwrap();
    let kept = tuner.results().remove("reduce sum_f32 1x4096").unwrap();
    let notes = tuner.path().unwrap().with_extension("trying");
    std::fs::create_dir(&notes).unwrap();
    let line = format!("{{\"case\":\"reduce sum_f32 1x4096\",\"way\":\"{}\"}}\nlonger before", kept.way);
    std::fs::write(notes.join("1-0"), line).unwrap();
    std::fs::write(notes.join("1-1"), "nonsense").unwrap();
    let after = Tuner::new(&device, Some(folder.path()), Tuning::Kept);
    assert!(after.results().is_empty() && after.ended().len() == 2 && !notes.exists());
    assert_eq!(after.warnings(), [""; 0]);
}

#[test]
fn what_another_process_is_measuring_is_not_taken_for_dead() {
    let device = cpu();
    if let Some(folder) = told() {
        let tuner = Tuner::new(&device, Some(&folder), Tuning::Kept);
        let wait = |tensors: &Tensors| -> Result<Work> {
            println!("\nmeasuring");
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
            repeated(1)(tensors)
        };
        let ways = [Way::new("usual", repeated(6)), Way::new("waits", wait)];
        let outcome = Contest::on(&device).noted(&tuner, "both").run(&ways).unwrap();
        println!("\nended {:?}", outcome.trials[1].fate);
        return;
    }
    let folder = tempdir().unwrap();
    let mut other = process("what_another_process_is_measuring_is_not_taken_for_dead", folder.path());
    let mut other = other.stdin(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(other.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line == "measuring"));
    // This one lives all the while, measures the same, and looks for dead ones several times.
    let tuner = Tuner::new(&device, Some(folder.path()), Tuning::Kept);
    let ways = [Way::new("usual", repeated(6)), Way::new("waits", repeated(1))];
    for _ in 0..2 {
        let outcome = Contest::on(&device).noted(&tuner, "both").run(&ways).unwrap();
        assert!(!matches!(outcome.trials[1].fate, Fate::Dropped(_)), "{outcome:?}");
    }
    assert!(Tuner::new(&device, Some(folder.path()), Tuning::Kept).ended().is_empty());
    drop(other.stdin.take());
    let last = said.find(|line| line.starts_with("ended")).unwrap();
    assert!(last == "ended Chosen" || last == "ended Slower", "{last}");
    assert!(other.wait().unwrap().success());
    assert!(Tuner::new(&device, Some(folder.path()), Tuning::Kept).ended().is_empty());
}
