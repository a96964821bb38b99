//! Our sides of the groups on any device, for whoever looks at how their time is spent.
//!
//! Two groups have none: conversions between sparse formats are done on the host, and a device has the threads that it has, so
//! there are no products on one of them.

use super::{
    Effort, conv,
    elementwise::{self, BINARY, FUNCTIONS, FUNCTIONS_OVER, REDUCE, UNARY},
    fourier, int8, our_product, our_small_op,
    products::Product,
    recurrent, sparse,
};
use crate::{Result, gpu::Context};

/// What is done, once, and checked.
type Work = fn(&Effort, &Context) -> Result<()>;

/// The work of each group, with its name and what it is.
pub(crate) const WORK: &[(&str, &str, Work)] = &[
    ("matmul_all_threads", "products of square matrices, 256 and 512 rows, checked", |effort, context| {
        products(effort, context, &[256, 512])
    }),
    ("matmul_small", "products of square matrices, 16 to 128 rows, checked", |effort, context| {
        products(effort, context, &[16, 32, 64, 128])
    }),
    ("unary", "relu, neg and sqrt of 1 Mi numbers", |effort, context| elements(effort, context, UNARY)),
    ("functions", "exp, tanh and sigmoid of 1 Mi numbers", |effort, context| elements(effort, context, FUNCTIONS)),
    ("binary", "sums and products of two arrays of 1 Mi numbers", |effort, context| elements(effort, context, BINARY)),
    ("reduce", "the sum and the largest of 1 Mi numbers", |effort, context| elements(effort, context, REDUCE)),
    ("small_op", "relu of 256 numbers", |effort, context| our_small_op(effort, context).map(drop)),
    ("sparse_product", "sparse matrices of 50,000 rows, with vectors", |effort, context| {
        sparse::products_on(effort, context, 50_000)
    }),
    ("fft", "transforms: lines, batches, planes", fourier::on),
    ("int8", "products in eight bits, and conversions", int8::on),
    ("conv", "convolutions of small pictures", conv::on),
    ("rnn", "small recurrent networks", recurrent::on),
];

fn elements(effort: &Effort, context: &Context, operations: elementwise::Operations) -> Result<()> {
    elementwise::ours(effort, context, FUNCTIONS_OVER, operations).map(drop)
}

fn products(effort: &Effort, context: &Context, sizes: &[usize]) -> Result<()> {
    sizes.iter().try_for_each(|&n| our_product(effort, context, &Product::square(n)).map(drop))
}
