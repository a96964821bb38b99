//! The groups of `millrace bench tensor`: operations on the CPU device next to the libraries that do nothing else, and
//! next to what the machine's memory allows.

mod about;
mod conv;
mod elementwise;
mod fourier;
mod int8;
mod limits;
mod products;
mod recurrent;
mod simd;
mod sparse;
mod targets;
mod work;

use std::{hint::black_box, sync::Arc};

use millrace::{Runtime, cpu::CpuThreads};

pub use crate::gpu::Effort;
use crate::{
    Error, Result,
    commands::Progress,
    gpu::{Context, numbers},
    groups::{self, Group},
    measure::{Metric, Side, batch_timed, warm_up},
    report::Report,
};
pub(crate) use about::about;
use elementwise::{BINARY, FUNCTIONS, FUNCTIONS_OVER, REDUCE, UNARY, elementwise};
use products::{Library, Product};
pub(crate) use work::WORK;

/// Measures all groups that `wanted` says yes to, the sides in turns, and sets the targets.
///
/// ```
/// use millrace_lab::tensor::{Effort, run_groups};
/// let report = run_groups(&Effort::quick(), &|name| name == "small_op", &mut |_| ());
/// assert!(report.rows.iter().any(|row| row.is_ours()));
/// println!("{}", report.to_json()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_groups(effort: &Effort, wanted: &dyn Fn(&str) -> bool, progress: &mut dyn FnMut(Progress<'_>)) -> Report {
    groups::run(groups(effort), &effort.turns(), wanted, progress)
}

/// The names of all groups, in the order they are measured.
pub fn group_names() -> Vec<&'static str> {
    groups(&Effort::quick()).iter().map(|group| group.name).collect()
}

pub(crate) fn groups(effort: &Effort) -> Vec<Group> {
    let sizes: &[usize] = if effort.small { &[256, 512] } else { &[256, 512, 1024, 2048] };
    let squares: Vec<_> = sizes.iter().map(|&n| Product::square(n)).collect();
    let mut small: Vec<_> = [16, 32, 64, 128].into_iter().map(Product::square).collect();
    small.extend([Product { m: 1, k: 1024, n: 1024 }, Product { m: 1024, k: 1, n: 1024 }]);
    let all = millrace::cpu::CpuInfo::get().cores;
    let elements = if effort.small { 1 << 20 } else { 16 << 20 };
    let rows = if effort.small { 50_000 } else { 1_000_000 };
    let mut sparse_products = sparse::products(effort, rows);
    sparse_products.push(limits::copy(effort, elements));
    let group = |name, sides, judge| Group::new(name, sides, judge).on(|_| "cpu");
    let (short, times) = effort.in_short_turns(3);
    vec![
        group("matmul_one_thread", products(&short, &squares, 1), targets::matmul).in_rounds(times),
        group("matmul_all_threads", products(&short, &squares, all), targets::matmul).in_rounds(times),
        group("matmul_small", products(effort, &small, all), targets::matmul_small),
        group("unary", vec![elementwise(effort, elements, UNARY), limits::copy(effort, elements)], targets::bandwidth),
        group(
            "functions",
            vec![elementwise(effort, FUNCTIONS_OVER, FUNCTIONS), limits::functions(effort, FUNCTIONS_OVER)],
            targets::fastest,
        ),
        group(
            "binary",
            vec![elementwise(effort, elements, BINARY), limits::copy(effort, elements)],
            targets::bandwidth,
        ),
        group(
            "reduce",
            vec![elementwise(&short, elements, REDUCE), limits::read(&short, elements)],
            targets::bandwidth,
        )
        .in_rounds(times),
        group("small_op", vec![small_op(effort)], targets::small_op),
        group("simd", simd::sides(effort), simd::target).with(simd::factors),
        group("sparse_convert", sparse::conversions(effort), targets::sparse_convert),
        group("sparse_product", sparse_products, targets::sparse_product),
        group("fft", fourier::sides(effort), targets::fft),
        group("int8", int8::sides(effort), targets::int8),
        group("conv", conv::sides(effort), conv::target),
        group("rnn", recurrent::sides(effort), targets::none),
    ]
}

/// A context on the CPU with so many threads.
fn context(threads: usize) -> Result<Context> {
    Context::of(Runtime::new(vec![Box::new(CpuThreads(threads))]).open("cpu")?)
}

/// The same products with our tensors and with every library, on so many threads.
fn products(effort: &Effort, products: &[Product], threads: usize) -> Vec<Side> {
    let products: Arc<[Product]> = products.into();
    let mut sides = vec![{
        let (effort, products) = (effort.clone(), products.clone());
        Side::new("millrace", move || {
            let context = context(threads)?;
            let metrics = products.iter().map(|product| our_product(&effort, &context, product)).collect();
            context.finish()?;
            metrics
        })
    }];
    // matrixmultiply reads how many threads it may use from the environment, once.
    let libraries = [Library::Gemm, Library::Faer, Library::Matrixmultiply];
    let usable = libraries.into_iter().filter(|library| threads > 1 || *library != Library::Matrixmultiply);
    sides.extend(usable.map(|library| {
        let (effort, products) = (effort.clone(), products.clone());
        let timed = move |product: &Product| {
            let (a, b, mut c) = product.operands();
            let run = || {
                library.multiply(product, &a, &b, black_box(&mut c), threads);
                Ok(())
            };
            let metric = product_timed(&effort, product, run)?;
            product.check(&c)?;
            Ok(metric)
        };
        Side::new(library.name(), move || products.iter().map(&timed).collect())
    }));
    // It has no way to say on how many threads.
    #[cfg(feature = "candle")]
    if threads > 1 {
        let (effort, products) = (effort.clone(), products.clone());
        let all = move || products.iter().map(|product| candles_product(&effort, product)).collect();
        sides.push(Side::new("candle", all));
    }
    sides
}

#[cfg(feature = "candle")]
fn candles_product(effort: &Effort, product: &Product) -> Result<Metric> {
    let wrong = |error: candle_core::Error| Error::Wrong(error.to_string());
    let (a, b, _) = product.operands();
    let tensor = |values, shape| candle_core::Tensor::from_vec(values, shape, &candle_core::Device::Cpu).map_err(wrong);
    let (a, b) = (tensor(a, (product.m, product.k))?, tensor(b, (product.k, product.n))?);
    let mut c = None;
    let metric = product_timed(effort, product, || {
        c = None;
        c = Some(black_box(a.matmul(&b).map_err(wrong)?));
        Ok(())
    })?;
    let c = c.map(|c| c.flatten_all()?.to_vec1::<f32>()).transpose().map_err(wrong)?;
    product.check(&c.unwrap_or_default())?;
    Ok(metric)
}

fn our_product(effort: &Effort, context: &Context, product: &Product) -> Result<Metric> {
    let (a, b, _) = product.operands();
    let a = context.tensors().from_slice(&a, &[product.m, product.k])?;
    let b = context.tensors().from_slice(&b, &[product.k, product.n])?;
    let mut c = None;
    let metric = product_timed(effort, product, || {
        c = None; // back to the pool: the libraries write to the same memory each time, too
        c = Some(a.matmul(&b)?);
        Ok(context.tensors().synchronize()?)
    })?;
    product.check(&c.map(|c| c.to_vec::<f32>()).transpose()?.unwrap_or_default())?;
    Ok(metric)
}

fn product_timed(effort: &Effort, product: &Product, mut run: impl FnMut() -> Result<()>) -> Result<Metric> {
    warm_up(effort.turn / 4, &mut run)?;
    // Small ones many at a time, since reading the clock takes as long.
    let batch = if product.flops() < 1e6 { 100 } else { 1 };
    let times = batch_timed(effort.turn, batch, run)?;
    Ok(Metric::higher(product.to_string(), "GFLOP/s", times.into_iter().map(|ns| product.flops() / ns).collect()))
}

/// One operation on 256 floats, from the call until the result is there.
fn small_op(effort: &Effort) -> Side {
    let effort = effort.clone();
    Side::new("millrace", move || {
        let context = context(millrace::cpu::CpuInfo::get().cores)?;
        let metrics = our_small_op(&effort, &context)?;
        context.finish()?;
        Ok(metrics)
    })
}

fn our_small_op(effort: &Effort, context: &Context) -> Result<Vec<Metric>> {
    let x = context.tensors().from_slice(&numbers(256, 1), &[256])?;
    let mut to_vec = || {
        let y = black_box(x.relu()?.to_vec::<f32>()?);
        if y.len() == 256 { Ok(()) } else { Err(Error::Wrong(format!("{} elements", y.len()))) }
    };
    let mut synchronize = || {
        let _y = black_box(x.relu()?);
        Ok(context.tensors().synchronize()?)
    };
    warm_up(effort.turn / 4, &mut to_vec)?;
    let vec = batch_timed(effort.turn, 50, to_vec)?;
    warm_up(effort.turn / 4, &mut synchronize)?;
    let waited = batch_timed(effort.turn, 50, synchronize)?;
    Ok(vec![Metric::lower("relu-256-to_vec", "ns", vec), Metric::lower("relu-256-synchronize", "ns", waited)])
}
