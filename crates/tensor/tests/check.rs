//! Programs whose operations are done on the CPU as well.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::PathBuf;

use millrace::{
    Device, DeviceKind, Engine, Found, Provider, Runtime,
    cpu::CpuProvider,
    faulty::{Faults, FaultyProvider},
    tensor::{
        Complex32, Conv, DType, Error, Norm, Pool, Recurrent, Result, Tensor, Tensors,
        check::{Call, Replay},
        quant::{Calibration, Parameters, Scheme},
        sparse::Csr,
    },
};
use tempfile::{TempDir, tempdir};

fn files(folder: &TempDir) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// A CPU with faults, beside one that is sound.
struct Odd(FaultyProvider);

impl Provider for Odd {
    fn list(&self) -> Vec<Found> {
        let (id, name) = ("odd".to_owned(), "an odd one".to_owned());
        vec![Found { id, kind: DeviceKind::Cuda, name, unavailable: None }]
    }

    fn open(&self, _: &str) -> millrace::Result<Engine> {
        self.0.open("cpu")
    }
}

fn odd() -> (Device, Faults) {
    let faults = Faults::default();
    let odd = Odd(FaultyProvider::new(CpuProvider, faults.clone()));
    let runtime = Runtime::new(vec![Box::new(CpuProvider), Box::new(odd)]);
    (runtime.open("odd").unwrap(), faults)
}

/// Every operation once or more, on views that are not in order as well.
fn everything(tensors: &Tensors) -> Result<()> {
    let x = tensors.rand(&[6, 8], 1)?.sub(0.5)?;
    let (t, i) = (x.t()?, x.mul(100.0)?.cast(DType::I32)?);
    let flags = x.gt(0.0)?;
    for y in [x.exp()?, x.sin()?, t.gelu()?, x.abs()?.sqrt()?, x.add(&x.slice(0, 0..1)?)?, t.pow(2.0)?, x.rem(0.3)?] {
        y.sum(&[0])?.to_vec::<f32>()?;
    }
    flags.select(&x, &x.neg()?)?.softmax(0)?.max(&[1])?.to_vec::<f32>()?;
    i.add(3)?.prod(&[0])?.to_vec::<i32>()?;
    t.argmax(0)?.to_vec::<i32>()?;
    x.argmin_all()?.item::<i32>()?;
    x.mean_all()?.item::<f32>()?;
    x.matmul(&t)?.contiguous()?.to_vec::<f32>()?;
    t.contiguous()?.pad(&[(1, 0), (0, 2)], 7.0f32)?.to_vec::<f32>()?;
    let spectrum = x.rfft(-1, Norm::Ortho)?;
    spectrum.irfft(-1, 8, Norm::Ortho)?.to_vec::<f32>()?;
    spectrum.fft(0, Norm::Backward)?.ifft(0, Norm::Backward)?.to_vec::<Complex32>()?;
    let matrix = tensors.sparse(Csr::new(2, 6, vec![0, 2, 3], vec![0, 5, 1], vec![1.0, 2.0, 3.0])?)?;
    matrix.matmul(&x)?.to_vec::<f32>()?;
    let picture = tensors.rand(&[2, 4, 9, 9], 2)?.sub(0.5)?;
    let (filters, some) = (tensors.rand(&[6, 2, 3, 3], 3)?, tensors.rand(&[6], 4)?);
    let seen = picture.conv(&filters, Some(&some), &Conv::new().groups(2).padding(1))?;
    seen.conv_transpose(&filters, None, &Conv::new().groups(2).stride(2))?.to_vec::<f32>()?;
    seen.max_pool(2, &Pool::new())?.avg_pool(3, &Pool::new().stride(1))?.to_vec::<f32>()?;
    seen.batch_norm(&some, &some, None, Some(&some), 1e-5)?.layer_norm(2, None, None, 1e-5)?.to_vec::<f32>()?;
    let network = Recurrent::gru(8, 5);
    let weights = tensors.rand(&[network.weights_len()], 5)?.sub(0.5)?;
    x.unsqueeze(1)?.recurrent(&network, &weights, None)?.output.to_vec::<f32>()?;
    let of = |x: &Tensor| x.quantize(&Parameters::calibrate(x, Scheme::affine(), Calibration::MinMax)?);
    let (a, b) = (of(&x)?, of(&t.contiguous()?)?);
    a.matmul(&b)?.add(&a.matmul_i32(&b)?.cast(DType::F32)?)?.to_vec::<f32>()?;
    of(&picture)?.conv(&of(&filters)?, &Conv::new().groups(2))?.to_vec::<f32>()?;
    a.dequantize()?.to_vec::<f32>()?;
    tensors.arange(0, 1, 5)?.to_vec::<i32>()?;
    tensors.zeros(&[0, 3])?.sum(&[1])?.to_vec::<f32>()?;
    Ok(())
}

#[test]
fn a_sound_device_agrees_in_everything() {
    for id in ["cpu", "gpu"] {
        let Ok(device) = millrace::runtime().open(id) else { continue };
        let folder = tempdir().unwrap();
        let tensors = Tensors::checked(&device, Some(folder.path())).unwrap();
        everything(&tensors).unwrap();
        let check = tensors.check().unwrap();
        assert_eq!(check.first(), None);
        assert!(check.compared() >= 60, "{}", check.compared());
        assert!(files(&folder).is_empty());
    }
}

#[test]
fn the_first_operation_that_differs_is_found_saved_and_done_again() {
    for (kernel, op) in [("relu_f32_narrow", "relu_f32_f32"), ("matmul_brief", "matmul"), ("softmax", "softmax")] {
        let ((device, faults), folder) = (odd(), tempdir().unwrap());
        let tensors = Tensors::checked(&device, Some(folder.path())).unwrap();
        faults.spoil(kernel);
        let x = tensors.rand(&[8, 8], 1).unwrap();
        let y = x.t().unwrap().add(1.0).unwrap();
        let z = y.relu().unwrap().matmul(&x).unwrap().softmax(-1).unwrap().sub(&x).unwrap();
        let error = z.to_vec::<f32>().unwrap_err();
        let Error::Differs(mismatch) = &error else { panic!("{error}") };
        assert_eq!(mismatch.op, op);
        assert_eq!((mismatch.at, mismatch.shapes[0].as_slice()), (0, &[8, 8][..]));
        assert!(mismatch.error > mismatch.tolerance && mismatch.got > 12.0, "{mismatch}");
        assert!(error.to_string().contains("millrace replay "), "{error}");
        // It is told once, and kept.
        z.to_vec::<f32>().unwrap();
        assert_eq!(tensors.check().unwrap().first().as_ref(), Some(&**mismatch));
        // Here it goes wrong again, on a sound device it does not.
        let replay = Replay::load(mismatch.saved.as_ref().unwrap()).unwrap();
        assert_eq!(replay.call().name(), op);
        assert_eq!(replay.run(&device).unwrap().at.unwrap().0, 0);
        assert_eq!(replay.run(&device.neighbour("cpu").unwrap()).unwrap().at, None);
        if let Ok(gpu) = millrace::runtime().open("gpu") {
            assert_eq!(replay.run(&gpu).unwrap().at, None);
        }
    }
}

#[test]
fn a_transposed_input_is_replayed_as_it_lay() {
    let ((device, faults), folder) = (odd(), tempdir().unwrap());
    let tensors = Tensors::checked(&device, Some(folder.path())).unwrap();
    faults.spoil("copy");
    let x = tensors.rand(&[3, 5], 1).unwrap().t().unwrap();
    assert!(x.contiguous().unwrap().to_vec::<f32>().is_err());
    let replay = Replay::load(&files(&folder)[0]).unwrap();
    assert_eq!((replay.call(), replay.shapes()), (&Call::Copy, vec![vec![5, 3]]));
    assert!(replay.run(&device).unwrap().at.is_some());
}

#[test]
fn without_a_check_nothing_is_compared_and_a_full_disk_is_no_reason_to_stop() {
    let (device, faults) = odd();
    faults.spoil("relu_f32_narrow");
    let tensors = Tensors::on(&device).unwrap();
    assert!(tensors.check().is_none());
    tensors.ones(&[4]).unwrap().relu().unwrap().to_vec::<f32>().unwrap();
    let folder = tempdir().unwrap();
    let nowhere = folder.path().join("not there");
    let tensors = Tensors::checked(&device, Some(&nowhere)).unwrap();
    let Err(Error::Differs(mismatch)) = tensors.ones(&[4]).unwrap().relu().unwrap().to_vec::<f32>() else {
        panic!("it differs")
    };
    assert_eq!(mismatch.saved, None);
    assert!(mismatch.not_saved.as_ref().unwrap().contains("not there"), "{mismatch}");
}

#[test]
fn files_that_are_no_replays_are_refused() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    assert!(Replay::load(&path).is_err());
    for bytes in [&b""[..], b"12345678", &[0xff; 64], b"\x02\0\0\0\0\0\0\0{}"] {
        std::fs::write(&path, bytes).unwrap();
        let error = Replay::load(&path).unwrap_err();
        assert!(error.to_string().contains("x.safetensors"), "{error}");
    }
    // One whose strides go beyond its bytes.
    let (device, faults) = odd();
    let tensors = Tensors::checked(&device, Some(folder.path())).unwrap();
    faults.spoil("copy");
    let x = tensors.rand(&[3, 5], 1).unwrap().t().unwrap();
    assert!(x.contiguous().unwrap().to_vec::<f32>().is_err());
    let saved = tensors.check().unwrap().first().unwrap().saved.unwrap();
    let good = std::fs::read(&saved).unwrap();
    let text = String::from_utf8_lossy(&good).into_owned();
    assert!(text.contains("strides\\\":[1,5]"), "{text}");
    let bad: Vec<u8> = replace(&good, b"[1,5]", b"[9,9]");
    std::fs::write(&saved, bad).unwrap();
    let error = Replay::load(&saved).unwrap_err();
    assert!(error.to_string().contains("outside its buffer"), "{error}");
}

fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}
