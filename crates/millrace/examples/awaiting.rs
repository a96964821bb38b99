//! The same road from async code. Nothing here needs a particular executor; this one is `pollster`.

#![allow(clippy::print_stdout, clippy::expect_used, reason = "an example talks")]

use millrace::prelude::*;

async fn double(device: &Device, stream: &Stream, input: Vec<u8>) -> Result<View, Box<dyn std::error::Error>> {
    let spec = KernelSpec::new("double").binding::<u8>("x", Access::ReadWrite).cpu(CpuKernel::per_group(|group| {
        group.output::<u8>(0).iter_mut().for_each(|x| *x = x.wrapping_mul(2));
    }));
    let (n, kernel) = (input.len(), device.kernel(&spec)?);
    let buffer = device.allocate(n)?;
    stream.submit_async(buffer.write(0, input)).await?;
    stream.submit_async(kernel.launch().bind(&buffer).over(n, 256)).await?;
    Ok(stream.submit_async(buffer.read(..)).await?.await?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = millrace::runtime().open("cpu")?;
    let stream = device.stream()?;
    let result = pollster::block_on(double(&device, &stream, (0..100).collect()))?;
    println!("{:?}", &result[..10]);
    assert!(result.iter().enumerate().all(|(i, x)| usize::from(*x) == 2 * i));
    Ok(())
}
