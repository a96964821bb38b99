//! One suite, once per device: every operation against a naive reference, the rules of shapes and views, errors, and
//! what typical chains cost in launches, submissions, uploads and memory.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests, which say what they leave out")]

use millrace::{
    DeviceKind,
    prelude::*,
    tensor::{
        self,
        validate::{Effort, validate},
    },
};
use proptest::prelude::*;

/// A device by its kind. One that is not there says why, and is left out.
fn device(kind: &str) -> Option<Device> {
    let runtime = millrace::runtime();
    let found = runtime.devices();
    let unavailable = |found: &millrace::Found| found.unavailable.clone();
    match found.iter().find(|found| found.kind.name() == kind && found.unavailable.is_none()) {
        Some(found) => Some(runtime.open(&found.id).unwrap()),
        None => {
            assert_ne!(kind, "cpu", "the CPU is always there");
            let why: Vec<_> = found.iter().filter(|found| found.kind.name() == kind).filter_map(unavailable).collect();
            println!("{kind} is left out: {why:?}");
            None
        }
    }
}

/// Every test of the suite for one device.
macro_rules! suite {
    ($device:ident: $($test:ident,)+) => {
        mod $device {
            $(#[test]
            fn $test() {
                if let Some(device) = super::device(stringify!($device)) {
                    super::$test(&device);
                }
            })+
        }
    };
}
macro_rules! suites {
    ($($device:ident),+) => {
        $(suite! { $device:
            every_operation_agrees_with_the_reference,
            views_share_the_buffer_and_copies_do_not,
            mistakes_name_both_sides,
            an_operation_that_failed_is_reported_when_elements_are_asked_for,
            chains_cost_what_they_must,
            the_same_seed_gives_the_same_numbers,
            random_shapes_broadcast_as_the_rules_say,
            random_views_see_the_elements_they_should,
            tensors_go_between_threads,
        })+
    };
}
suites!(cpu, gpu);

fn every_operation_agrees_with_the_reference(device: &Device) {
    let rows = validate(device, &Effort::default().large(300_000), |_| ()).unwrap();
    let wrong: Vec<_> = rows.iter().filter(|row| !row.ok).collect();
    assert!(wrong.is_empty(), "{} of {} rows: {wrong:#?}", wrong.len(), rows.len());
    assert!(rows.len() > 700, "only {} rows", rows.len());
}

fn views_share_the_buffer_and_copies_do_not(device: &Device) {
    let tensors = Tensors::on(device).unwrap();
    let x = tensors.arange(0, 1, 24).unwrap().reshape(&[2, 3, 4]).unwrap();
    let views = [
        x.reshape(&[6, 4]).unwrap(),
        x.permute(&[2, 0, 1]).unwrap(),
        x.t().unwrap(),
        x.slice(1, 1..).unwrap(),
        x.flip(0).unwrap(),
        x.expand(&[5, 2, 3, 4]).unwrap(),
        x.unsqueeze(1).unwrap().squeeze(1).unwrap(),
        x.contiguous().unwrap(),
    ];
    assert!(views.iter().all(|view| view.shares_buffer_with(&x)));
    let copies = [x.t().unwrap().contiguous().unwrap(), x.t().unwrap().flatten().unwrap()];
    assert!(copies.iter().all(|copy| !copy.shares_buffer_with(&x)));
}

fn mistakes_name_both_sides(device: &Device) {
    let tensors = Tensors::on(device).unwrap();
    let (a, i) = (tensors.zeros(&[2, 3]).unwrap(), tensors.full(&[2, 3], 1).unwrap());
    let says = |result: tensor::Result<Tensor>, what: &str| assert_eq!(result.unwrap_err().to_string(), what);
    says(a.add(&tensors.zeros(&[4]).unwrap()), "add: shapes [2, 3] and [4] do not broadcast");
    says(a.add(&i), "add: element types f32 and i32 differ; cast one of them");
    says(i.add(0.5), "add: element types i32 and f32 differ; cast one of them");
    says(i.exp(), "exp: takes f32, not i32");
    says(a.sum(&[2]), "sum: axis 2 of shape [2, 3] does not exist");
    says(a.sum(&[0, -2]), "sum: axis -2 of shape [2, 3] is named twice");
    says(a.slice(0, 1..5), "slice: range 1..5 is not inside axis 0 of shape [2, 3]");
    says(a.reshape(&[7]), "reshape: 6 elements do not fill shape [7], which has 7");
    says(tensors.zeros(&[0, 2]).unwrap().max(&[0]), "max: of no elements, along axes of length zero of shape [0, 2]");
    says(a.unsqueeze(9), "unsqueeze: axis 9 of shape [2, 3] does not exist");
    says(tensors.zeros(&[1; 9]), "full: 9 axes are more than 8");
    let product = a.matmul(&a).unwrap_err().to_string();
    assert!(product.starts_with("matmul: shapes [2, 3] and [2, 3] do not multiply"), "{product}");
    let elsewhere = Tensors::on(device).unwrap();
    says(a.add(&elsewhere.zeros(&[2, 3]).unwrap()), "add: the operands were made by different `Tensors`");
}

fn an_operation_that_failed_is_reported_when_elements_are_asked_for(device: &Device) {
    if device.info().kind != DeviceKind::Cpu {
        return; // a kernel that fails on request is a CPU kernel
    }
    let tensors = Tensors::on(device).unwrap();
    let x = tensors.ones(&[4]).unwrap();
    let broken = KernelSpec::new("broken").cpu(CpuKernel::whole(|_| panic!("on request")));
    tensors.stream().enqueue(device.kernel(&broken).unwrap().launch()).unwrap();
    let error = x.to_vec::<f32>().unwrap_err();
    assert!(matches!(error, tensor::Error::Device(Error::Panicked(_))), "{error}");
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0; 4], "it is told once");
}

/// What a chain costs: launches, other commands, and buffers from the pool.
fn chains_cost_what_they_must(device: &Device) {
    let tensors = Tensors::on(device).unwrap();
    let x = tensors.rand(&[64, 256], 1).unwrap();
    let w = tensors.rand(&[256, 256], 2).unwrap();
    let bias = tensors.rand(&[256], 3).unwrap();
    type Chain<'a> = (&'a str, u64, Box<dyn Fn() -> tensor::Result<Tensor> + 'a>);
    let chains: [Chain<'_>; 6] = [
        ("one op", 1, Box::new(|| x.relu())),
        ("a number costs no buffer", 2, Box::new(|| x.mul(2.0)?.add(1)?.contiguous())),
        ("a layer", 3, Box::new(|| x.matmul(&w)?.add(&bias)?.relu())),
        ("views cost nothing", 1, Box::new(|| x.t()?.slice(0, 3..40)?.flip(1)?.exp())),
        ("a reduction of short rows", 1, Box::new(|| x.sum(&[1]))),
        ("softmax", 1, Box::new(|| x.softmax(-1))),
    ];
    for (name, launches, chain) in chains {
        chain().unwrap(); // compiles, and fills the pool
        tensors.synchronize().unwrap();
        let (before, memory) = (device.counts(), device.memory());
        let out = chain().unwrap();
        tensors.synchronize().unwrap();
        let (counts, after) = (device.counts() - before, device.memory());
        assert_eq!(counts.launches, launches, "{name}: launches");
        let transfers = counts.writes + counts.reads + counts.copies + counts.fills;
        assert_eq!((transfers, counts.compiled), (0, 0), "{name}: transfers and compilations");
        assert!(counts.submissions <= 2, "{name}: {} submissions", counts.submissions);
        assert_eq!(after.misses, memory.misses, "{name}: new memory");
        assert_eq!(after.hits - memory.hits, launches, "{name}: one buffer per launch, and none beside");
        let before = device.counts();
        drop(out.to_vec::<f32>().unwrap());
        let counts = device.counts() - before;
        assert_eq!((counts.launches, counts.reads), (u64::from(!out.is_contiguous()), 1), "{name}: to_vec");
    }
}

fn the_same_seed_gives_the_same_numbers(device: &Device) {
    let of = |device: &Device, seed| Tensors::on(device).unwrap().rand(&[1000], seed).unwrap().to_vec::<f32>().unwrap();
    let cpu = millrace::runtime().open("cpu").unwrap();
    assert_eq!(of(device, 7), of(&cpu, 7));
    assert_ne!(of(device, 7), of(device, 8));
    let mean = of(device, 1 << 40).iter().sum::<f32>() / 1000.0;
    assert!((mean - 0.5).abs() < 0.05, "{mean}");
}

/// Two shapes that may broadcast, and how a user would find out.
fn shapes() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    let dims = || proptest::collection::vec(prop_oneof![Just(1usize), Just(2), Just(3), Just(0)], 0..4);
    (dims(), dims())
}

fn check<S: Strategy>(strategy: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    proptest::test_runner::TestRunner::new(config).run(&strategy, test).unwrap();
}

fn random_shapes_broadcast_as_the_rules_say(device: &Device) {
    let tensors = Tensors::on(device).unwrap();
    check(shapes(), |(a, b)| {
        let rank = a.len().max(b.len());
        let padded = |s: &[usize]| [vec![1; rank - s.len()], s.to_vec()].concat();
        let pairs: Vec<_> = padded(&a).into_iter().zip(padded(&b)).collect();
        let fits = pairs.iter().all(|&(a, b)| a == b || a == 1 || b == 1);
        let count = |s: &[usize]| s.iter().product::<usize>();
        let x = tensors.arange(0, 1, count(&a)).unwrap().reshape(&a).unwrap();
        let y = tensors.arange(100, 1, count(&b)).unwrap().reshape(&b).unwrap();
        match x.add(&y) {
            Ok(sum) => {
                prop_assert!(fits);
                let want: Vec<usize> = pairs.iter().map(|&(a, b)| if a == 1 { b } else { a }).collect();
                prop_assert_eq!(sum.shape(), &want[..]);
                let stretched = |t: &Tensor| t.expand(&want).unwrap().to_vec::<i32>().unwrap();
                let want: Vec<i32> = stretched(&x).iter().zip(stretched(&y)).map(|(a, b)| a + b).collect();
                prop_assert_eq!(sum.to_vec::<i32>().unwrap(), want);
            }
            Err(error) => {
                prop_assert!(!fits, "{}", error);
                prop_assert_eq!(error.to_string(), format!("add: shapes {a:?} and {b:?} do not broadcast"));
            }
        }
        Ok(())
    });
}

/// A step from one view to the next.
#[derive(Debug, Clone)]
enum Step {
    Transpose(usize, usize),
    Slice(usize, usize, usize, isize),
    Unsqueeze(usize),
    Flatten,
    Expand(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let n = || 0usize..6;
    let step = prop_oneof![
        (n(), n()).prop_map(|(a, b)| Step::Transpose(a, b)),
        (n(), n(), n(), prop_oneof![Just(1isize), Just(-1), Just(2), Just(-3)])
            .prop_map(|(axis, a, b, step)| Step::Slice(axis, a, b, step)),
        n().prop_map(Step::Unsqueeze),
        Just(Step::Flatten),
        n().prop_map(Step::Expand),
    ];
    proptest::collection::vec(step, 1..7)
}

/// Every element carries its number, so a view is right if the numbers are. The model keeps the numbers in a list.
fn random_views_see_the_elements_they_should(device: &Device) {
    let tensors = Tensors::on(device).unwrap();
    check(steps(), |steps| {
        let (mut shape, mut model) = (vec![3usize, 4, 2], (0..24).collect::<Vec<i32>>());
        let mut view = tensors.arange(0, 1, 24).unwrap().reshape(&shape).unwrap();
        for step in steps {
            let rank = shape.len();
            let old = (shape.clone(), model.clone());
            let at = |place: &[usize]| old.1[place.iter().zip(&old.0).fold(0, |n, (i, dim)| n * dim + i)];
            let from: Box<dyn Fn(Vec<usize>) -> Vec<usize>>;
            match step {
                Step::Transpose(a, b) if rank > 0 => {
                    let (a, b) = (a % rank, b % rank);
                    shape.swap(a, b);
                    view = view.transpose(a as isize, b as isize).unwrap();
                    from = Box::new(move |mut place| {
                        place.swap(a, b);
                        place
                    });
                }
                Step::Slice(axis, a, b, step) if rank > 0 => {
                    let axis = axis % rank;
                    let (a, b) = (a % (shape[axis] + 1), b % (shape[axis] + 1));
                    let (start, end) = (a.min(b), a.max(b));
                    view = view.slice_step(axis as isize, start..end, step).unwrap();
                    shape[axis] = (end - start).div_ceil(step.unsigned_abs());
                    from = Box::new(move |mut place| {
                        let steps = place[axis] * step.unsigned_abs();
                        place[axis] = if step > 0 { start + steps } else { end - 1 - steps };
                        place
                    });
                }
                Step::Unsqueeze(axis) if rank < 6 => {
                    let axis = axis % (rank + 1);
                    shape.insert(axis, 1);
                    view = view.unsqueeze(axis as isize).unwrap();
                    from = Box::new(move |mut place| {
                        place.remove(axis);
                        place
                    });
                }
                Step::Flatten => {
                    shape = vec![model.len()];
                    view = view.flatten().unwrap();
                    prop_assert_eq!(view.to_vec::<i32>().unwrap(), &model[..]);
                    continue;
                }
                Step::Expand(n) if rank < 6 && model.len() < 500 => {
                    shape.insert(0, n);
                    view = view.expand(&shape).unwrap();
                    from = Box::new(|mut place| {
                        place.remove(0);
                        place
                    });
                }
                _ => continue,
            }
            let places = (0..shape.iter().product::<usize>()).map(|mut n| {
                let mut place = vec![0; shape.len()];
                for axis in (0..shape.len()).rev() {
                    (place[axis], n) = (n % shape[axis], n / shape[axis]);
                }
                place
            });
            model = places.map(|place| at(&from(place))).collect();
            prop_assert_eq!(view.shape(), &shape[..]);
            prop_assert_eq!(view.to_vec::<i32>().unwrap(), &model[..]);
            // Operations see the same elements as copies do, and reductions too.
            prop_assert_eq!(
                view.add(1).unwrap().to_vec::<i32>().unwrap(),
                model.iter().map(|x| x + 1).collect::<Vec<_>>()
            );
            prop_assert_eq!(view.sum_all().unwrap().item::<i32>().unwrap(), model.iter().sum::<i32>());
        }
        Ok(())
    });
}

fn tensors_go_between_threads(device: &Device) {
    let tensors = Tensors::on(device).unwrap();
    let x = tensors.ones(&[1000]).unwrap();
    let sums: Vec<f32> = std::thread::scope(|scope| {
        let add = |n: i32| x.add(n).unwrap().sum_all().unwrap().item::<f32>().unwrap();
        let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || add(n))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(sums, [1000.0, 2000.0, 3000.0, 4000.0]);
}
