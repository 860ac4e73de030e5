//! Group after group, each as `gemm` does a product.

use crate::{
    act::Tail,
    gemm::{
        finish::store_staged,
        product::{self, Item, Product},
    },
    kernel::{self, Disjoint, input},
    numbers,
};
use kp_hal::{
    Launch, Queue, Result,
    op::{GroupedGemm, GroupedGemmArgs, GroupedGemmSpec, Grouping},
};

/// The loops of a product, for one group at a time.
pub(super) trait Loops: Send + Sync {
    /// What sums end as.
    type End: Tail;

    /// The scratch of [`item`](Self::item), the stage, and the codes to transpose.
    fn scratch<'s>(&self, scratch: &'s mut [u8]) -> (&'s mut [u8], &'s mut [Self::End], &'s mut [u8]);

    /// Computes a group; sums that must wait for their rows go to `stage`.
    ///
    /// # Safety
    /// No other thread computes the same rows of D.
    unsafe fn item(
        &self,
        product: &Product<'_>,
        item: Item,
        scratch: &mut [u8],
        stage: Option<Disjoint<'_, Self::End>>,
    );
}

/// Groups, each a product of `form`.
pub(super) struct Grouped<F> {
    pub(super) spec: GroupedGemmSpec,
    pub(super) form: F,
}

impl<F: Loops> Launch<GroupedGemm> for Grouped<F> {
    unsafe fn launch(&self, queue: &mut dyn Queue, args: &GroupedGemmArgs<'_>) -> Result<()> {
        let Self { spec, form } = self;
        // SAFETY: the arguments were checked, says the caller.
        let (product, groups) = unsafe { (Product::of_groups(spec, args), input(&args.groups)) };
        let (scratch, stage, codes) = form.scratch(kernel::own(queue).scratch());
        let staged = !stage.is_empty();
        let count = spec.gemm.batch as usize;
        for g in 0..count {
            let item = product::group(spec, groups, g);
            let waiting = staged.then(|| Disjoint::of(&mut *stage));
            // SAFETY: groups have their own rows of D; where they do not, they are computed one after the other.
            unsafe { form.item(&product, item, scratch, waiting) };
            if staged && spec.grouping == Grouping::Masked {
                store_staged(&product, item.row_batch, item.rows, stage, codes);
            }
        }
        if staged && spec.grouping == Grouping::Contiguous {
            let end = numbers::index(groups, count).clamp(0, spec.gemm.m as i32) as usize;
            store_staged(&product, 0, end, stage, codes);
        }
        Ok(())
    }
}
