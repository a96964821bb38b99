//! Bad input, and what it is answered with.

use millrace::tensor::{
    Algorithm, Conv, Error, Quantized, Tensors,
    quant::{Invalid, Parameters},
};

use super::{per_channel, per_tensor, places};

#[test]
fn scales_that_are_none_are_refused() {
    let scale = |scale: f32| match Parameters::new(vec![1.0, scale], vec![0, 0], Some(0)) {
        Err(Error::Quant(Invalid::Scale { index: 1, scale: said })) => said.to_bits() == scale.to_bits(),
        _ => false,
    };
    for bad in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, f32::MAX] {
        assert!(scale(bad), "{bad}");
    }
    assert!(!scale(1.0));
}

#[test]
fn lists_of_the_wrong_length_are_refused() {
    let length = |error: Error, what: &str, given: usize, expected: usize| {
        assert_eq!(error.to_string(), format!("there are {given} {what}, not {expected}"));
        assert!(matches!(error, Error::Quant(Invalid::Length { .. })));
    };
    length(Parameters::new(vec![1.0; 2], vec![0; 2], None).unwrap_err(), "scales", 2, 1);
    length(Parameters::new(vec![], vec![], None).unwrap_err(), "scales", 0, 1);
    length(Parameters::new(vec![1.0; 3], vec![0; 2], Some(0)).unwrap_err(), "zero points", 2, 3);
    for tensors in places() {
        let x = tensors.ones(&[4, 5]).unwrap();
        let four = Parameters::new(vec![1.0; 4], vec![0; 4], Some(-1)).unwrap();
        length(x.quantize(&four).unwrap_err(), "scales", 4, 5);
        length(tensors.quantized(&[0; 6], &[2, 3], &four).unwrap_err(), "scales", 4, 3);
        let nowhere = Parameters::new(vec![1.0; 4], vec![0; 4], Some(2)).unwrap();
        assert!(matches!(x.quantize(&nowhere), Err(Error::Axis { op: "quantize", axis: 2, .. })));
        assert!(matches!(tensors.quantized(&[0; 5], &[2, 3], &per_tensor(1.0, 0)), Err(Error::Elements { .. })));
    }
}

#[test]
fn zero_points_out_of_range_are_refused() {
    for bad in [128, -129, i32::MAX, i32::MIN] {
        let error = Parameters::new(vec![1.0; 2], vec![0, bad], Some(0)).unwrap_err();
        assert_eq!(error, Error::Quant(Invalid::ZeroPoint { index: 1, zero_point: bad }));
    }
    for good in [127, -128] {
        assert!(Parameters::new(vec![1.0], vec![good], None).is_ok());
    }
}

#[test]
fn factors_that_do_not_go_together_are_refused() {
    for tensors in places() {
        let of = |shape: &[usize], parameters: &Parameters| {
            tensors.quantized(&vec![1; shape.iter().product()], shape, parameters).unwrap()
        };
        let one = per_tensor(1.0, 0);
        let a = of(&[2, 3], &one);
        let error = a.matmul(&of(&[2, 3], &one)).unwrap_err();
        assert!(error.to_string().starts_with("matmul: shapes [2, 3] and [2, 3] do not multiply"), "{error}");
        assert!(matches!(a.matmul(&of(&[3], &one)), Err(Error::Shapes { .. })));
        assert!(matches!(a.matmul(&of(&[3, 2, 1], &one)), Err(Error::Shapes { .. })));
        assert!(matches!(of(&[], &one).matmul(&of(&[1, 1], &one)), Err(Error::Shapes { .. })));
        assert!(matches!(of(&[2, 3, 4], &one).t(), Err(Error::Rank { .. })));
        // Scales that differ inside of a sum cannot be taken out of it.
        let along = |shape: &[usize], axis: usize| of(shape, &per_channel(1, shape[axis], axis as isize));
        let axis = |error: Error| matches!(error, Error::Quant(Invalid::Axis { .. }));
        assert!(axis(along(&[2, 3], 1).matmul(&of(&[3, 2], &one)).unwrap_err()));
        assert!(axis(a.matmul(&along(&[3, 2], 0)).unwrap_err()));
        assert!(axis(a.matmul_i32(&along(&[2, 3], 1).t().unwrap()).unwrap_err()));
        assert!(a.matmul(&along(&[2, 3], 0).t().unwrap()).is_ok());
        let elsewhere = Tensors::on(tensors.device()).unwrap().quantized(&[1; 6], &[3, 2], &one).unwrap();
        assert!(matches!(a.matmul(&elsewhere), Err(Error::Strangers { .. })));
        assert!(matches!(tensors.arange(0, 1, 3).unwrap().quantize(&one), Err(Error::DType { .. })));
    }
}

#[test]
fn convolutions_that_cannot_be_are_refused() {
    for tensors in places() {
        let of =
            |shape: &[usize]| tensors.quantized(&vec![1; shape.iter().product()], shape, &per_tensor(1.0, 0)).unwrap();
        let (x, w) = (of(&[1, 4, 5, 5]), of(&[4, 2, 3, 3]));
        let usual = Conv::new().groups(2);
        let conv = |w: &Quantized, conv: &Conv| x.conv(w, conv).map(|y| y.shape().to_vec());
        assert_eq!(conv(&w, &usual).unwrap(), [1, 4, 3, 3]);
        let refused = |w: &Quantized, settings: Conv, why: &str| {
            let error = conv(w, &settings).unwrap_err().to_string();
            assert!(error.contains(why), "{settings:?}: {error}");
        };
        let (groups, larger) = ("groups have to divide channels and filters", "larger than the input");
        refused(&w, usual.clone().groups(3), groups);
        refused(&w, usual.clone().groups(0), "groups 0 have to be at least one");
        refused(&of(&[5, 2, 3, 3]), usual.clone(), groups);
        refused(&w, usual.clone().groups(1), groups);
        refused(&of(&[4, 2, 3]), usual.clone(), "as many axes");
        refused(&of(&[4, 2]), usual.clone(), "as many axes");
        refused(&w, usual.clone().stride([1, 0]), "stride [1, 0] has to be at least one");
        refused(&w, usual.clone().dilation([0, 1]), "dilation [0, 1] has to be at least one");
        refused(&of(&[4, 2, 0, 3]), usual.clone().padding(1), "has length zero");
        refused(&w, usual.clone().stride([1, 1, 1]), "one number, or one for each axis");
        refused(&of(&[4, 2, 3, 6]), usual.clone(), larger);
        refused(&w, usual.clone().dilation([3, 1]), larger);
        refused(&w, usual.clone().output_padding(1), "for transposed");
        refused(&w, usual.clone().algorithm(Algorithm::Winograd), "winograd does not convolve numbers in eight bits");
        assert!(conv(&w, &usual.clone().padding([0, usize::MAX])).is_err());
        assert!(conv(&w, &usual.clone().dilation([1, usize::MAX])).is_err());
        assert_eq!(conv(&w, &usual.clone().stride([usize::MAX, 1])).unwrap(), [1, 4, 1, 3]);
        let apart = tensors.quantized(&[1; 100], &[1, 4, 5, 5], &per_channel(1, 4, 1)).unwrap();
        assert!(matches!(apart.conv(&w, &usual), Err(Error::Quant(Invalid::Axis { axis: 1, .. }))));
        let apart = tensors.quantized(&[1; 72], &[4, 2, 3, 3], &per_channel(1, 2, 1)).unwrap();
        assert!(matches!(x.conv(&apart, &usual), Err(Error::Quant(Invalid::Axis { axis: 1, .. }))));
        // No images are no error.
        assert_eq!(of(&[0, 4, 5, 5]).conv(&w, &usual).unwrap().shape(), [0, 4, 3, 3]);
    }
}

#[test]
fn sums_that_may_not_fit_are_refused_and_the_longest_that_fit_are_right() {
    for tensors in places() {
        // The largest products there are, with the most that fit.
        for (zero, limit, product) in [(0, 131_071, 128 * 128), (-128, 33_025, 255 * 255)] {
            let of = |shape: &[usize], value: i8| {
                let elements = vec![value; shape.iter().product()];
                tensors.quantized(&elements, shape, &per_tensor(1.0, zero)).unwrap()
            };
            let value = if zero == 0 { -128 } else { 127 };
            let sums = of(&[1, limit], value).matmul_i32(&of(&[limit, 1], value)).unwrap();
            assert_eq!(sums.to_vec::<i32>().unwrap(), [(limit * product) as i32]);
            let error = of(&[1, limit + 1], value).matmul_i32(&of(&[limit + 1, 1], value)).unwrap_err();
            assert_eq!(error, Error::Quant(Invalid::Depth { op: "matmul_i32", depth: limit + 1, limit }));
        }
    }
}
