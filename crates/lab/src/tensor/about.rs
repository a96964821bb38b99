//! What each group of `millrace bench tensor` measures, in a sentence.

/// The sentence of a group.
pub(crate) fn about(group: &str) -> &'static str {
    match group {
        "matmul_one_thread" => "Square f32 matrix products on one thread; both operands and the result are checked.",
        "matmul_all_threads" => "The same products on all cores.",
        "matmul_small" => "Small and thin products, where the way to the kernel counts as much as the kernel.",
        "unary" => "One array in, one out; the limit is a parallel copy of the same arrays.",
        "functions" => "Functions that take many instructions, over a million floats, next to the standard library's.",
        "binary" => "Two arrays in, one out; the limit is a parallel copy.",
        "reduce" => "One array to one number; the limit is a parallel read.",
        "small_op" => "One operation on 256 floats, from the call until the result is there.",
        "simd" => {
            "Operations on arrays in the nearest cache, on one thread, less what any operation takes, next to one element at a time."
        }
        "sparse_convert" => "A sparse matrix from coordinates to rows.",
        "sparse_product" => "A sparse matrix times a vector: banded, random and uneven rows.",
        "fft" => {
            "Fourier transforms of many sizes next to the library alone, and next to any operation on short lines."
        }
        "conv" => "Convolutions of the shapes that networks have, next to candle.",
        "rnn" => "Recurrent networks over 64 steps: one layer, and two in both directions.",
        "int8" => "Products in eight bits next to the same in f32, and conversions next to a copy.",
        _ => "Operations on tensors, next to libraries that do nothing else.",
    }
}
