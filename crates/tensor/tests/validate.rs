//! What a validation says of a device that fails.

#![allow(clippy::unwrap_used, reason = "a test")]

use millrace::{
    Device, Runtime,
    cpu::CpuProvider,
    faulty::{Faults, FaultyProvider},
    tensor::validate::{Effort, validate},
};

fn faulty() -> (Device, Faults) {
    let faults = Faults::default();
    let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
    (runtime.open("cpu").unwrap(), faults)
}

fn small() -> Effort {
    Effort::default().large(500)
}

#[test]
fn a_kernel_that_is_not_compiled_is_a_row_that_says_so_and_the_others_go_on() {
    let (device, faults) = faulty();
    // Broken for the one behind every `neg`.
    let rows = validate(&device, &small(), |row| faults.break_compiler(row.op == "neg")).unwrap();
    let (well, wrong): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.ok);
    assert!(!wrong.is_empty() && wrong.iter().all(|row| row.op == "neg i32"), "{wrong:#?}");
    for op in ["abs", "matmul", "dot", "layer_norm"] {
        assert!(well.iter().any(|row| row.op == op), "no row of {op}");
    }
    assert!(well.iter().all(|row| row.why.is_none()));
    for row in wrong {
        let why = row.why.as_deref().unwrap();
        assert!(why.contains("neg_i32"), "it names the kernel: {why}");
        // What is no number in JSON is explained there.
        let json = serde_json::to_value(row).unwrap();
        assert!(json["error"].is_null() && json["why"] == why, "{json}");
    }
}

#[test]
fn memory_that_is_refused_for_inputs_is_a_row_and_the_others_go_on() {
    let (device, faults) = faulty();
    let (mut refuses, mut done) = (false, false);
    let rows = validate(&device, &small(), |row| {
        // From the first sums on, until something needs more than there is.
        done |= !row.ok;
        refuses = !done && (refuses || row.op == "sum");
        faults.refuse_memory(refuses);
        device.trim(0);
    })
    .unwrap();
    let wrong: Vec<_> = rows.iter().filter(|row| !row.ok).collect();
    assert_eq!(wrong.len(), 1, "{wrong:#?}");
    assert!(wrong[0].why.is_some(), "{wrong:#?}");
    assert!(rows.iter().any(|row| row.op == "layer_norm"));
}

#[test]
fn a_result_that_is_wrong_by_more_than_any_number_says_which_element_it_is() {
    let (device, faults) = faulty();
    // The first element becomes 12.08, which is finite where infinities should be.
    faults.spoil("exp_f32_narrow");
    let rows = validate(&device, &small(), |_| ()).unwrap();
    let wrong: Vec<_> = rows.iter().filter(|row| !row.ok).collect();
    assert!(!wrong.is_empty() && wrong.iter().all(|row| row.op == "exp"), "{wrong:#?}");
    for row in wrong {
        assert_eq!(row.error.is_infinite(), row.why.is_some(), "{row:?}");
        assert_eq!(row.error.is_infinite(), row.size.starts_with("nan and inf"), "{row:?}");
        assert!(row.why.as_deref().is_none_or(|why| why.starts_with("element 0 is 12.")), "{row:?}");
    }
}

#[test]
fn a_device_that_is_lost_ends_its_validation_with_what_there_is() {
    let (device, faults) = faulty();
    let rows = validate(&device, &small(), |row| {
        if row.op == "exp" {
            faults.lose_after(0);
        }
    })
    .unwrap();
    let (last, before) = rows.split_last().unwrap();
    assert_eq!((last.op.as_str(), last.ok), ("device", false), "{last:?}");
    assert!(last.why.as_deref().unwrap().contains("lost"), "{last:?}");
    assert!(before.iter().any(|row| row.op == "exp") && before.iter().all(|row| row.ok));
    assert!(!before.iter().any(|row| row.op == "layer_norm"));
}
