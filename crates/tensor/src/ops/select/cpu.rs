use crate::cpu::map::Map;

/// The second where the first is true, else the third, as bits of any type.
pub(crate) enum Select {}

impl Map<3> for Select {
    type In = u32;
    type Out = u32;
    const COST: f64 = 0.5;
    #[inline(always)]
    fn apply([condition, a, b]: [u32; 3]) -> u32 {
        if condition != 0 { a } else { b }
    }
}
