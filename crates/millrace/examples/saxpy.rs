//! A kernel of your own, in twenty lines: y += a x.

#![allow(clippy::print_stdout, clippy::expect_used, reason = "an example talks")]

use millrace::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let saxpy = KernelSpec::new("saxpy")
        .binding::<f32>("x", Access::Read)
        .binding::<f32>("y", Access::ReadWrite)
        .params::<f32>()
        .cpu(CpuKernel::per_group(|group| {
            let (a, start) = (group.params::<f32>(), group.start(1));
            let (x, y) = (group.input::<f32>(0), group.output::<f32>(1));
            for (i, y) in y.iter_mut().enumerate() {
                *y += a * x[start + i];
            }
        }));

    let device = millrace::runtime().open("cpu")?;
    let (stream, saxpy) = (device.stream()?, device.kernel(&saxpy)?);
    let n = 1_000_000;
    let x: Vec<u8> = (0..n).flat_map(|i| (i as f32).to_ne_bytes()).collect();
    let (on_device, y) = (device.allocate(4 * n)?, device.allocate(4 * n)?);

    stream.submit(on_device.write(0, x))?;
    stream.submit(saxpy.launch().bind(&on_device).bind(&y).params(&2f32).over(n, 1024))?;
    let result = stream.run(y.read(..))?;

    let wrong = result.to::<f32>().iter().enumerate().filter(|(i, y)| **y != 2.0 * *i as f32).count();
    println!("{n} results on {}, {wrong} of them wrong", device.info().name);
    assert_eq!(wrong, 0);
    Ok(())
}
