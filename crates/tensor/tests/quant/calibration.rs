//! Scales that are found from numbers, and what is lost with them.

use millrace::tensor::{
    Error, Tensor,
    quant::{Calibration, Calibrator, Invalid, Parameters, Scheme},
};

use super::{numbers, per_tensor, places};

/// Numbers near zero, and one far out.
fn with_outlier(n: usize) -> Vec<f32> {
    // A sum of several is bell-shaped.
    let all = numbers(9, 8 * n);
    let mut x: Vec<f32> = all.chunks_exact(8).map(|some| some.iter().sum::<f32>() / 4.0).collect();
    x[n / 2] = 100.0;
    x
}

#[test]
fn kinds_of_calibration_tell_outliers_apart() {
    for tensors in places() {
        let x = tensors.from_slice(&with_outlier(20_000), &[20_000]).unwrap();
        let scale = |calibration| {
            let parameters = Parameters::calibrate(&x, Scheme::symmetric(), calibration).unwrap();
            f64::from(parameters.scales()[0])
        };
        let all = scale(Calibration::MinMax);
        assert_eq!(all, f64::from(100.0f32 / 127.0), "nothing is clipped");
        assert!((scale(Calibration::Percentile(100.0)) / all - 1.0).abs() < 1e-6);
        let most = scale(Calibration::Percentile(99.9));
        assert!(most < all / 30.0, "{most} of {all}");
        let half = scale(Calibration::Percentile(50.0));
        assert!(half < most / 2.0, "{half}, {most}");
        let entropy = scale(Calibration::Entropy);
        assert!(entropy < all / 8.0 && entropy > half, "{entropy} of {all}");
        // What is not clipped is worth more than what is.
        let of = |calibration| {
            let parameters = Parameters::calibrate(&x, Scheme::symmetric(), calibration).unwrap();
            let q = x.quantize(&parameters).unwrap();
            q.accuracy_against(&x).unwrap()
        };
        let (all, entropy) = (of(Calibration::MinMax), of(Calibration::Entropy));
        assert!(all.largest < 1.0 && entropy.largest > 80.0, "{all:?}, {entropy:?}");
        assert!(entropy.mean * 4.0 < all.mean, "{all:?}, {entropy:?}");
        // Both ends of an affine range are clipped.
        let affine = Parameters::calibrate(&x, Scheme::affine(), Calibration::Percentile(99.0)).unwrap();
        let (scale, zero) = (affine.scales()[0], affine.zero_points()[0]);
        assert!(255.0 * scale < 6.0 && (-10..10).contains(&zero), "{affine:?}");
    }
}

#[test]
fn a_calibrator_sees_all_that_it_was_shown_channel_by_channel() {
    for tensors in places() {
        let first = tensors.from_slice(&[1.0f32, 0.0, -2.0, 0.5, 3.0, 0.25], &[3, 2]).unwrap();
        let second = tensors.from_slice(&[-5.0f32, 0.125], &[1, 2]).unwrap();
        for (calibration, slack) in [(Calibration::MinMax, 1e-6), (Calibration::Percentile(100.0), 1e-3)] {
            let mut calibrator = Calibrator::new(Scheme::affine().per_channel(-1), calibration).unwrap();
            calibrator.observe(&first).unwrap();
            calibrator.observe(&second).unwrap();
            let parameters = calibrator.parameters().unwrap();
            for (got, want) in parameters.scales().iter().zip([8.0 / 255.0, 0.5 / 255.0]) {
                assert!((got / want - 1.0).abs() < slack, "{parameters:?}");
            }
            assert_eq!(parameters.zero_points(), [31, -128]);
            let error = calibrator.observe(&tensors.ones(&[2, 3]).unwrap()).unwrap_err();
            assert_eq!(error, Error::Quant(Invalid::Channels { before: 2, now: 3 }));
        }
    }
}

#[test]
fn a_scale_per_channel_is_more_accurate_than_one_for_all() {
    for tensors in places() {
        // Rows of very different sizes.
        let data: Vec<f32> = numbers(3, 64 * 128).iter().enumerate().map(|(i, x)| x * (i / 128 + 1) as f32).collect();
        let w = tensors.from_slice(&data, &[64, 128]).unwrap();
        let db = |scheme| {
            let parameters = Parameters::calibrate(&w, scheme, Calibration::MinMax).unwrap();
            let back = w.quantize(&parameters).unwrap().dequantize().unwrap();
            // Every row counts the same.
            let scales = w.abs().unwrap().max(&[1]).unwrap().unsqueeze(1).unwrap();
            back.div(&scales).unwrap().accuracy_against(&w.div(&scales).unwrap()).unwrap().signal_to_noise_db
        };
        let (one, each) = (db(Scheme::symmetric()), db(Scheme::symmetric().per_channel(0)));
        assert!(each > one + 10.0 && each > 45.0, "{each} dB and {one} dB");
    }
}

#[test]
fn what_cannot_be_calibrated_with_is_refused() {
    for tensors in places() {
        let of = |x: &[f32]| {
            let x = tensors.from_slice(x, &[x.len()]).unwrap();
            Parameters::calibrate(&x, Scheme::affine(), Calibration::MinMax)
        };
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(matches!(of(&[1.0, bad, 2.0]), Err(Error::Quant(Invalid::Range { channel: 0, .. }))), "{bad}");
        }
        assert_eq!(of(&[]).unwrap_err(), Error::Quant(Invalid::Nothing));
        // Zeros stand for themselves, and the widest range there is has a scale.
        assert_eq!(of(&[0.0, 0.0]).unwrap(), per_tensor(1.0, -128));
        let widest = of(&[f32::MAX, f32::MIN]).unwrap();
        assert!(widest.scales()[0].is_finite() && (-1..=0).contains(&widest.zero_points()[0]), "{widest:?}");
        let whole = tensors.arange(0, 1, 3).unwrap();
        assert!(matches!(
            Parameters::calibrate(&whole, Scheme::affine(), Calibration::MinMax),
            Err(Error::DType { .. })
        ));
    }
    for bad in [0.0, -1.0, 100.1, f64::NAN, f64::INFINITY] {
        let error = Calibrator::new(Scheme::affine(), Calibration::Percentile(bad)).unwrap_err();
        assert!(matches!(error, Error::Quant(Invalid::Percentile { .. })), "{bad}");
    }
    let nothing = Calibrator::new(Scheme::symmetric(), Calibration::Entropy).unwrap();
    assert_eq!(nothing.parameters().unwrap_err(), Error::Quant(Invalid::Nothing));
}

#[test]
fn accuracy_is_what_it_says() {
    for tensors in places() {
        let of = |x: &[f32]| tensors.from_slice(x, &[x.len()]).unwrap();
        let accuracy = of(&[3.0, 4.0, 1.0]).accuracy_against(&of(&[3.0, 4.0, 0.0])).unwrap();
        assert!((accuracy.signal_to_noise_db - 10.0 * 25f64.log10()).abs() < 1e-9, "{accuracy:?}");
        assert_eq!((accuracy.largest, accuracy.mean), (1.0, 1.0 / 3.0));
        assert!((accuracy.cosine - 25.0 / (25.0f64 * 26.0).sqrt()).abs() < 1e-12);
        let same = of(&[0.0, 0.0]).accuracy_against(&of(&[0.0, 0.0])).unwrap();
        assert_eq!((same.signal_to_noise_db, same.largest, same.cosine), (f64::INFINITY, 0.0, 1.0));
        assert!(of(&[f32::NAN]).accuracy_against(&of(&[1.0])).unwrap().largest.is_nan());
        assert!(matches!(of(&[1.0]).accuracy_against(&of(&[1.0, 2.0])), Err(Error::Shapes { .. })));
        // A product in eight bits is near the one in f32.
        let (a, b) = (tensors.rand(&[64, 300], 1).unwrap(), tensors.rand(&[300, 48], 2).unwrap().sub(0.5).unwrap());
        let quantize =
            |x: &Tensor, scheme| x.quantize(&Parameters::calibrate(x, scheme, Calibration::MinMax).unwrap()).unwrap();
        let y = quantize(&a, Scheme::affine()).matmul(&quantize(&b, Scheme::symmetric().per_channel(1))).unwrap();
        let accuracy = y.accuracy_against(&a.matmul(&b).unwrap()).unwrap();
        assert!(accuracy.signal_to_noise_db > 30.0 && accuracy.cosine > 0.999, "{accuracy:?}");
    }
}
