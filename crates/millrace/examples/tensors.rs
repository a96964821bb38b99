//! Tensors: a small classifier's forward pass, on the device that is named (`cpu` if none is).

#![allow(clippy::print_stdout, reason = "an example talks")]

use millrace::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = millrace::runtime().open(&std::env::args().nth(1).unwrap_or("cpu".into()))?;
    let tensors = Tensors::on(&device)?;

    // A batch of four images of 28 x 28 pixels, and two layers of weights around zero.
    let images = tensors.rand(&[4, 28, 28], 1)?;
    let weights = |shape: &[usize], seed| tensors.rand(shape, seed)?.sub(0.5)?.mul(0.1);
    let (first, second) = (weights(&[28 * 28, 128], 2)?, weights(&[128, 10], 3)?);
    let bias = weights(&[128], 4)?;

    // Nothing waits here: every line hands the device its work and goes on.
    let hidden = images.reshape(&[4, 28 * 28])?.matmul(&first)?.add(&bias)?.relu()?;
    let classes = hidden.matmul(&second)?.softmax(-1)?;
    let best = classes.argmax(-1)?;

    // Asking for elements waits.
    for (image, class) in best.to_vec::<i32>()?.into_iter().enumerate() {
        let share = classes.slice(0, image..=image)?.slice(1, class as usize..=class as usize)?.item::<f32>()?;
        println!("image {image}: class {class} with {:.1} %", 100.0 * share);
    }
    println!("on {}: {:?}", device.info().name, device.counts());
    Ok(())
}
