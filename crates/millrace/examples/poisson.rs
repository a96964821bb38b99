//! A sparse system: the temperature of a plate whose rim is kept cold, with a heater in the middle, by conjugate
//! gradients on the device that is named (`cpu` if none is).

#![allow(clippy::print_stdout, reason = "an example talks")]

use millrace::{prelude::*, tensor::sparse::Coo};

/// Points along a side of the plate.
const SIDE: usize = 64;

/// The five-point Laplace operator: four times a point, less its neighbours.
fn laplace() -> Result<Coo, Box<dyn std::error::Error>> {
    let mut entries = Coo::empty(SIDE * SIDE, SIDE * SIDE)?;
    for at in 0..SIDE * SIDE {
        let (row, column) = (at / SIDE, at % SIDE);
        entries.push(at, at, 4.0)?;
        let neighbours = [
            (row > 0).then(|| at - SIDE),
            (row + 1 < SIDE).then_some(at + SIDE),
            (column > 0).then(|| at - 1),
            (column + 1 < SIDE).then_some(at + 1),
        ];
        for neighbour in neighbours.into_iter().flatten() {
            entries.push(at, neighbour, -1.0)?;
        }
    }
    Ok(entries)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = millrace::runtime().open(&std::env::args().nth(1).unwrap_or("cpu".into()))?;
    let tensors = Tensors::on(&device)?;
    let matrix = tensors.sparse(laplace()?)?;
    println!("{} unknowns, {} non-zeros on {}", matrix.shape()[0], matrix.nnz(), device.info().name);

    let mut heat = vec![0f32; SIDE * SIDE];
    heat[SIDE * SIDE / 2 + SIDE / 2] = 1.0;
    let heat = tensors.from_vec(heat, &[SIDE * SIDE])?;
    let dot = |a: &Tensor, b: &Tensor| a.mul(b)?.sum_all();

    let mut x = tensors.zeros(&[SIDE * SIDE])?;
    let mut residual = heat.clone();
    let mut direction = residual.clone();
    let mut square = dot(&residual, &residual)?;
    for step in 1..=400 {
        // Nothing waits in here: the factors stay on the device.
        let along = matrix.matvec(&direction)?;
        let length = square.div(&dot(&direction, &along)?)?;
        x = x.add(&direction.mul(&length)?)?;
        residual = residual.sub(&along.mul(&length)?)?;
        let next = dot(&residual, &residual)?;
        direction = residual.add(&direction.mul(&next.div(&square)?)?)?;
        square = next;
        if step % 20 == 0 {
            let size = square.item::<f32>()?.sqrt();
            println!("step {step}: residual {size:.2e}");
            if size < 1e-6 {
                break;
            }
        }
    }
    // What the equation says, not what the method believes.
    let error = matrix.matvec(&x)?.sub(&heat)?;
    let error = dot(&error, &error)?.item::<f32>()?.sqrt();
    println!("|A x - b| = {error:.2e}, hottest {:.4}", x.max_all()?.item::<f32>()?);
    assert!(error < 1e-4, "the solution solves the equation");
    Ok(())
}
