//! Random specs of every op, drawn from a tape of numbers.

use kp_hal::op::*;
use kp_hal::{DType, Real};

/// Numbers that choices are made from. A 0 makes the simplest one and an empty tape is all zeros, so that shrinking
/// the numbers shrinks the spec.
pub(crate) struct Tape<'t>(std::slice::Iter<'t, u32>);

impl<'t> Tape<'t> {
    pub(crate) fn new(numbers: &'t [u32]) -> Self {
        Self(numbers.iter())
    }

    pub(crate) fn below(&mut self, n: u32) -> u32 {
        self.0.next().copied().unwrap_or(0) % n
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }

    /// Once in `n` times.
    fn rarely(&mut self, n: u32) -> bool {
        self.below(n) == n - 1
    }

    fn maybe<T>(&mut self, n: u32, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.rarely(n).then(|| make(self))
    }

    /// Mostly small; now and then at the limit of what a `u32` holds.
    fn dim(&mut self) -> u32 {
        match self.below(12) {
            10 => 1 << self.below(32),
            11 => u32::MAX - self.below(40),
            _ => self.below(300),
        }
    }

    fn float(&mut self) -> DType {
        self.pick(&[DType::F32, DType::Bf16, DType::F16, DType::F64])
    }

    fn maybe_float(&mut self) -> Option<DType> {
        self.maybe(3, Self::float)
    }

    fn real(&mut self) -> Real {
        Real::new(self.below(1 << 20) as f32 / 1024.0).expect("finite")
    }

    fn block(&mut self) -> u16 {
        match self.below(4) {
            0 => 1,
            1 => 128,
            2 => 1 + self.below(300) as u16,
            _ => u16::MAX - self.below(3) as u16,
        }
    }

    /// A narrow type with a scheme that suits it.
    pub(crate) fn narrow(&mut self) -> Format {
        use DType::{Bf16, E2m1, E4m3, E4m3Fnuz, E5m2, E5m2Fnuz, F16, F32, I4, I8, Nf4, U4, U8};
        const SIGNED: &[DType] = &[E4m3, E5m2, E4m3Fnuz, E5m2Fnuz, E2m1, Nf4, I4, I8];
        let (dtype, scheme) = match self.below(8) {
            0 => (self.pick(SIGNED), Scheme::Row),
            1 => (self.pick(SIGNED), Scheme::Tensor),
            2 | 3 => (self.pick(SIGNED), Scheme::Block { outer: self.block(), inner: self.block() }),
            4 => (self.pick(&[E4m3, E5m2, E2m1, I8]), Scheme::Mx),
            5 => (E2m1, Scheme::Nv),
            6 => {
                let (inner, scale) = (self.block(), self.pick(&[F32, F16, Bf16]));
                (self.pick(&[I4, U4, I8, U8]), Scheme::Group { inner, scale, zero: true })
            }
            _ => {
                let (inner, scale) = (self.block(), self.pick(&[F32, F16, Bf16]));
                (self.pick(SIGNED), Scheme::Group { inner, scale, zero: false })
            }
        };
        let scales = match scheme {
            Scheme::Mx | Scheme::Nv => self.pick(ScaleLayout::ALL),
            Scheme::Block { .. } | Scheme::Group { .. } => self.pick(&[ScaleLayout::Inner, ScaleLayout::Outer]),
            _ => ScaleLayout::Inner,
        };
        Format { dtype, scheme, scales }
    }

    /// Mostly floats, else narrow ones, else any type at all.
    fn format(&mut self) -> Format {
        match self.below(6) {
            4 => self.narrow(),
            5 => self.pick(DType::ALL).into(),
            _ => self.float().into(),
        }
    }

    pub(crate) fn order(&mut self) -> Order {
        match self.below(4) {
            0 | 1 => Order::Row,
            2 => Order::Col,
            _ => Order::Panel { width: self.block(), depth: self.pick(&[1, 2, 4, 8, 3]) },
        }
    }

    pub(crate) fn matrix(&mut self, format: Format, order: Order, rows: u32, cols: u32) -> Matrix {
        let mut m = Matrix::tight(format, order, rows, cols);
        if self.rarely(3) {
            m.ld = m.ld.saturating_add(2 * self.below(40));
            m.stride = m.tight_stride(rows, cols).saturating_add(u64::from(2 * self.below(900)));
        }
        if self.rarely(8) {
            m.stride = self.below(3).into();
        }
        m
    }

    fn rows(&mut self, format: impl Into<Format>, cols: u32) -> Rows {
        let tight = Rows::tight(format, cols);
        let gap = if self.rarely(3) { 2 * self.below(40) } else { 0 };
        Rows { ld: tight.ld.saturating_add(gap), ..tight }
    }

    pub(crate) fn mask(&mut self) -> Mask {
        const TEXTS: [&str; 4] = ["q>=k&&q-k<128||k<4", "!(h==1)", "(q+k)%7*-2!=b", "1"];
        match self.below(7) {
            0 | 1 => Mask::Full,
            2 => Mask::Causal,
            3 => Mask::Window { left: self.dim(), right: self.dim() },
            4 => Mask::Prefix { len: self.dim() },
            5 => Mask::Blocks { q: self.dim(), k: self.dim() },
            _ => Mask::Expr(self.pick(&TEXTS).parse().expect("an expression")),
        }
    }
}

fn activation(t: &mut Tape<'_>) -> ActivationSpec {
    let spec = ActivationSpec::new(t.dim(), t.dim(), t.pick(Act::ALL), t.pick(Gate::ALL), t.float());
    let x = t.rows(spec.x.format, spec.x_cols());
    let format = t.format();
    ActivationSpec { x, y: t.rows(format, spec.cols), factor: t.maybe_float(), residual: t.maybe_float(), ..spec }
}

fn attention(t: &mut Tape<'_>) -> AttentionSpec {
    let kv_heads = 1 + t.below(8);
    let heads = [kv_heads * (1 + t.below(8)), kv_heads];
    let dim = t.dim();
    let mut spec = AttentionSpec::new(t.dim(), heads, [t.dim(), t.dim()], dim, t.float());
    if t.rarely(3) {
        spec.v_dim = t.dim();
    }
    if t.rarely(8) {
        spec.q_heads = t.dim();
    }
    for format in [&mut spec.q, &mut spec.kv] {
        if t.rarely(3) {
            *format = Format::new(DType::E4m3, t.pick(&[Scheme::None, Scheme::Tensor, Scheme::Row]));
        } else if t.rarely(4) {
            *format = t.format();
        }
    }
    spec.layout = t.pick(HeadLayout::ALL);
    spec.lens = match t.below(4) {
        2 => Lens::Padded,
        3 => Lens::Packed { q_total: t.dim(), kv_total: t.dim() },
        _ => Lens::Fixed,
    };
    if t.rarely(4) {
        spec.storage = Kv::Paged { page: t.dim(), pages: t.dim() };
        spec.lens = t.pick(&[Lens::Padded, Lens::Packed { q_total: spec.q_len, kv_total: 0 }]);
    }
    spec.mask = t.mask();
    (spec.scale, spec.softcap) = (t.maybe(3, Tape::real), t.maybe(3, Tape::real));
    (spec.alibi, spec.sinks, spec.lse) = (t.rarely(2), t.rarely(2), t.rarely(2));
    spec.ld = spec.tight_ld();
    if t.rarely(3) {
        spec.ld = spec.ld.map(|ld| ld.saturating_add(2 * t.below(40)));
    }
    spec
}

fn attention_backward(t: &mut Tape<'_>) -> AttentionBackwardSpec {
    AttentionBackwardSpec { forward: attention(t) }
}

fn cast(t: &mut Tape<'_>) -> CastSpec {
    let (batch, rows, cols) = (t.below(4), t.dim(), t.dim());
    let [from, to] = [0; 2].map(|_| t.pick(DType::ALL).into());
    let (x, y) = (t.order(), t.order());
    let overflow = if t.rarely(8) { Overflow::Propagate } else { Overflow::Saturate };
    CastSpec { batch, rows, cols, x: t.matrix(from, x, rows, cols), y: t.matrix(to, y, rows, cols), overflow }
}

fn dequantize(t: &mut Tape<'_>) -> DequantizeSpec {
    let (rows, cols) = (t.dim(), t.dim());
    let (q, y) = (t.narrow(), t.float());
    DequantizeSpec { rows, cols, q: t.rows(q, cols), y: t.rows(y, cols) }
}

fn gather(t: &mut Tape<'_>) -> GatherSpec {
    let (rows, cols, table_rows) = (t.dim(), t.dim(), t.dim());
    let (table, y) = if t.rarely(3) { (t.pick(DType::ALL), t.pick(DType::ALL)) } else { (t.float(), t.float()) };
    GatherSpec { rows, cols, table_rows, table: t.rows(table, cols), y: t.rows(y, cols) }
}

fn gemm(t: &mut Tape<'_>) -> GemmSpec {
    let (batch, m, n, k) = (t.below(5), t.dim(), t.dim(), t.dim());
    let [a, b, d] = match t.below(3) {
        0 => [t.float().into(); 3],
        1 => [t.narrow(), t.narrow(), t.format()],
        _ => [t.format(), t.format(), t.format()],
    };
    let mut spec = GemmSpec { batch, ..GemmSpec::new(m, n, k, [a, b, d]) };
    if t.rarely(4) {
        spec.acc = t.pick(Acc::ALL);
    }
    spec.c = match t.below(6) {
        4 => Addend::Given(t.float()),
        5 => Addend::InPlace,
        _ => Addend::None,
    };
    if t.rarely(6) {
        spec.sparsity = Sparsity::TwoOfFour;
        spec.k = k / 8 * 8;
    }
    let gate = if t.rarely(4) { t.pick(Gate::ALL) } else { Gate::None };
    spec.n -= n % gate.columns();
    spec.epilogue = Epilogue { bias: t.maybe_float(), act: t.pick(Act::ALL), gate, residual: t.maybe_float() };
    let [ao, bo, d_order] = [t.pick(&[Order::Row, Order::Col]), t.order(), t.pick(&[Order::Row, Order::Col])];
    spec.a = t.matrix(a, ao, m, spec.a_cols());
    spec.b = t.matrix(b, bo, spec.k, spec.n);
    spec.d = t.matrix(d, d_order, m, spec.d_cols());
    spec
}

fn grouped_gemm(t: &mut Tape<'_>) -> GroupedGemmSpec {
    let grouping = t.pick(Grouping::ALL);
    let gemm = GemmSpec { c: Addend::None, sparsity: Sparsity::Dense, ..gemm(t) };
    GroupedGemmSpec { gemm, grouping }
}

fn norm(t: &mut Tape<'_>) -> NormSpec {
    let spec = NormSpec::new(t.dim(), t.dim(), t.pick(NormKind::ALL), t.float());
    let (x, y) = (t.rows(spec.x.format, spec.cols), t.format());
    let y = t.rows(y, spec.cols);
    NormSpec { x, y, eps: t.real(), weight: t.maybe_float(), bias: t.maybe_float(), residual: t.rarely(2), ..spec }
}

fn norm_backward(t: &mut Tape<'_>) -> NormBackwardSpec {
    let spec = NormBackwardSpec::new(t.dim(), t.dim(), t.pick(NormKind::ALL), t.float());
    let grad_y = t.float();
    let (x, grad_y) = (t.rows(spec.x.format, spec.cols), t.rows(grad_y, spec.cols));
    NormBackwardSpec { x, grad_y, eps: t.real(), weight: t.maybe_float(), bias: t.rarely(2), ..spec }
}

fn quantize(t: &mut Tape<'_>) -> QuantizeSpec {
    let (rows, cols) = (t.dim(), t.dim());
    let (x, q) = (t.float(), t.narrow());
    let spec = QuantizeSpec::new(rows, cols, x, q);
    let rule = if t.rarely(4) { t.pick(ScaleRule::ALL) } else { spec.rule };
    let overflow = if t.rarely(8) { Overflow::Propagate } else { Overflow::Saturate };
    QuantizeSpec { x: t.rows(x, cols), q: t.rows(q, cols), rule, overflow, scales: t.pick(Scales::ALL), ..spec }
}

fn reduce(t: &mut Tape<'_>) -> ReduceSpec {
    let over = match t.below(3) {
        0 => Reduced::Cols,
        1 => Reduced::Rows,
        _ => Reduced::Segments(t.dim()),
    };
    let spec = ReduceSpec::new(t.dim(), t.dim(), t.pick(ReduceOp::ALL), over, t.float());
    ReduceSpec { x: t.rows(spec.x.format, spec.cols), y: t.float(), ..spec }
}

fn rope(t: &mut Tape<'_>) -> RopeSpec {
    let mut spec = RopeSpec::new(t.dim(), t.dim(), 2 * t.below(99), t.dim(), t.float());
    if t.rarely(3) {
        spec.rotated = t.below(spec.dim + 2);
    }
    let y = t.float();
    (spec.x, spec.y) = (t.rows(spec.x.format, spec.cols()), t.rows(y, spec.cols()));
    (spec.pairs, spec.inverse) = (t.pick(RopePairs::ALL), t.rarely(2));
    spec
}

fn softmax(t: &mut Tape<'_>) -> SoftmaxSpec {
    let spec = SoftmaxSpec::new(t.dim(), t.dim(), t.float());
    let y = t.float();
    let (x, y) = (t.rows(spec.x.format, spec.cols), t.rows(y, spec.cols));
    SoftmaxSpec { x, y, scale: t.real(), log: t.rarely(2), ..spec }
}

/// A problem of the op that stands at `op` in `AnyProblem::OPS`, or why what was drawn is none.
pub(crate) fn problem(op: usize, t: &mut Tape<'_>) -> Result<AnyProblem, BadProblem> {
    fn built<S: Spec>(spec: S, t: &mut Tape<'_>) -> Result<AnyProblem, BadProblem>
    where
        AnyProblem: From<Problem<S>>,
    {
        let repro = t.pick(&[Repro::Deterministic, Repro::Fast, Repro::BatchInvariant]);
        let align = Align::new(t.pick(&[16, 1, 2, 256])).expect("a power of two");
        Ok(spec.build()?.with_repro(repro).with_align(align).into())
    }
    match AnyProblem::OPS[op] {
        "activation" => built(activation(t), t),
        "attention" => built(attention(t), t),
        "attention_backward" => built(attention_backward(t), t),
        "cast" => built(cast(t), t),
        "dequantize" => built(dequantize(t), t),
        "gather" => built(gather(t), t),
        "gemm" => built(gemm(t), t),
        "grouped_gemm" => built(grouped_gemm(t), t),
        "norm" => built(norm(t), t),
        "norm_backward" => built(norm_backward(t), t),
        "quantize" => built(quantize(t), t),
        "reduce" => built(reduce(t), t),
        "rope" => built(rope(t), t),
        "softmax" => built(softmax(t), t),
        other => panic!("nothing draws specs of {other}: write its function above"),
    }
}
