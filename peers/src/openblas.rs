//! OpenBLAS, loaded at run time.

use std::{ffi::c_int, sync::OnceLock};

use libloading::Library;

type Sgemm = unsafe extern "C" fn(
    order: c_int,
    transpose_a: c_int,
    transpose_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: f32,
    a: *const f32,
    lda: c_int,
    b: *const f32,
    ldb: c_int,
    beta: f32,
    c: *mut f32,
    ldc: c_int,
);

/// Where OpenBLAS may be. `OPENBLAS` names another file.
const NAMES: [&str; 3] = ["libopenblas.so.0", "libopenblas.so", "libopenblas.dylib"];

fn sgemm() -> Option<Sgemm> {
    static SGEMM: OnceLock<Option<(Library, Sgemm)>> = OnceLock::new();
    let load = || {
        let own = std::env::var("OPENBLAS").ok();
        own.iter().map(String::as_str).chain(NAMES).find_map(|name| {
            // SAFETY: OpenBLAS has no initialization beyond starting its threads.
            let library = unsafe { Library::new(name) }.ok()?;
            // SAFETY: this is the C signature of `cblas_sgemm` with 32-bit integers, which these file names have.
            let sgemm = *unsafe { library.get::<Sgemm>(b"cblas_sgemm\0") }.ok()?;
            Some((library, sgemm))
        })
    };
    SGEMM.get_or_init(load).as_ref().map(|(_, sgemm)| *sgemm)
}

/// Whether it is installed.
pub(crate) fn is_there() -> bool {
    sgemm().is_some()
}

/// The product of an m×k and a k×n matrix, stored row by row; `None` if OpenBLAS is not installed.
pub(crate) fn product([m, k, n]: [usize; 3], a: &[f32], b: &[f32], c: &mut [f32]) -> Option<()> {
    assert_eq!((a.len(), b.len(), c.len()), (m * k, k * n, m * n), "the sides have their sizes");
    let (row_major, plain) = (101, 111);
    let [m, k, n] = [m, k, n].map(|size| size as c_int);
    let sgemm = sgemm()?;
    // SAFETY: the pointers are to m*k, k*n and m*n floats, as was just asserted, stored row by row without gaps.
    unsafe {
        sgemm(row_major, plain, plain, m, n, k, 1.0, a.as_ptr(), k, b.as_ptr(), n, 0.0, c.as_mut_ptr(), n);
    }
    Some(())
}
