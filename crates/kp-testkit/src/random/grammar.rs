//! Of which words the problems of each op are drawn.
//!
//! A list is one place of the line, the words in it are choices, the simplest first. One that begins with `-` is an option, which most
//! lines lack. In a word
//!
//! - `{a,b,}` is one of these, the last of them nothing;
//! - `#M320` is a length of 1 to 320, small or beside a tile's edge more often than not, now and then 0; M is its name;
//! - `#M20*16` is 16 times one of 1 to 20;
//! - `$M` is that length again, `$M+8` one that is 8 longer, `$M~16` the next multiple of 16.
//!
//! A line need not be a problem, and a problem need not have a kernel: those that are and have count.

/// The places of a line after the op's name.
pub(super) fn places(op: &str) -> Option<&'static [&'static str]> {
    PLACES.iter().find(|(name, _)| *name == op).map(|(_, places)| *places)
}

const REPRO: &str = "- repro=batch-invariant repro=fast";
const ALIGN: &str = "- align={1,2,4,8,64}";
const ACT: &str = "- act={relu,gelu,gelu_tanh,silu,sigmoid,tanh}";
const GATE: &str = "- gate={halves,pairs}";
const FLOATS: &str = "f32:f32 bf16:bf16 f16:f16 {f32,bf16,f16}:{f32,bf16,f16} {f64,f32}:{f64,f32}";
const ROWS: &str = "#R130x#C300 #R20x#C8200";
const LONGER_ROWS: &str = "#R130x#C300 #R20x#C8200 #R3x#C20000";
/// Rows further apart than they are long.
const LDX: &str = "- ldx=$C+{1,8} ldx=$C~16";
const LDY: &str = "- ldy=$C+{3,8} ldy=$C~16";
const NORMS: &str = "kind=rms kind=layer kind=l2";
const SOFTCAP: &str = "- softcap={2.5,50.0}";
const WEIGHT: &str = "- weight={f32,bf16,f16}";
/// What activations and norms store.
const STORED: &str = "f32:f32 bf16:bf16 f16:f16 {f32,bf16,f16}:{f32,bf16,f16} f64:{f64,f32} \
    {f32,bf16}:{e4m3@row,e4m3@1x32,e5m2@1x128^outer,e4m3@tensor,i8@row,i8@tensor,e2m1@mx,e4m3@mx^tiles,e2m1@nv,i4@g32/f16,e4m3,i8}";
const MASK: &str = "- mask=causal mask=causal mask=window/{0,3,40,200}/{0,2,5,70} mask=prefix/{1,4,70} mask=blocks/{1,4,16}/{3,8,64} \
    mask=(q>=k&&q-k<5||k<2+h) mask=((q+k+h)%3!=b)";
const LDQ: &str = "- ldq={1026,1032,2304,5128}";
const LDK: &str = "- ldk={1028,1032,2304,5128}";
const LDV: &str = "- ldv={1029,1040,2304,5128}";
const LDO: &str = "- ldo={1025,1048,2304,5128}";

const PLACES: &[(&str, &[&str])] = &[
    (
        "activation",
        &[ROWS, STORED, ACT, GATE, "- factor={f32,bf16,f16,f64}", "- residual={f32,bf16,f16}", LDX, LDY, REPRO, ALIGN],
    ),
    (
        "attention",
        &[
            "#B3x{1,2,4:2,8:1,6:3}x#Q140x{16,32,64,128} #B3x{1,3,2:1,4:2,20:1,14:2}x#Q140:#K300x{8,24,64,80,96,128} \
             #B3x{1,4:2,8:1,32:8}x1:#K1100x{32,64,128,256} #B3x{1,8:2,9:1}x#Q9:#K300x{64,128,192:128} \
             #B4x{1,2,6:2}x#Q40:#K140x#D160 #B4x{1,2,6:2}x#Q40:#K140x#D260:#V260",
            "f32:f32:f32 bf16:bf16:bf16 f16:f16:f16 {bf16,f16}:{bf16,f16}:{bf16,f16,f32} {f32,f64,bf16}:{f32,f64,f16}:{f32,f64,bf16} \
             {e4m3,e5m2}@{tensor,row}:{e4m3,e5m2}@{tensor,row}:{bf16,f16,f32} {bf16,f16,f32}:{e4m3,e5m2}{@tensor,@row,}:{bf16,f16,f32} \
             bf16:e2m1@row:bf16",
            "- layout=bhsd",
            "- lens=padded lens=packed/$Q/$K lens=packed/{0,20,70}/{0,33,90} lens=packed/{1,31,130}/0",
            "- page={1,4,5,16,64}/{1,13,50}",
            MASK,
            "- scale={0.3,-1.0,8.0,0.0}",
            SOFTCAP,
            "- alibi",
            "- sinks",
            "- lse",
            LDQ,
            LDK,
            LDV,
            LDO,
            REPRO,
            ALIGN,
        ],
    ),
    (
        "attention_backward",
        &[
            "#B3x{1,2,4:2,6:2,8:1}x#Q70x{16,32,64,128} #B3x{1,2:1,6:3}x#Q70:#K140x{8,24,64,80} #B3x{1,2,6:2}x#Q24:#K40x#D70:#V70",
            "f32:f32:f32 bf16:bf16:bf16 f16:f16:f16 f64:f64:f64 {f32,bf16,f16}:{f32,bf16,f16}:{f32,bf16,f16}",
            "- layout=bhsd",
            "- lens=padded lens=packed/$Q/$K lens=packed/{0,20,70}/{0,33,90}",
            MASK,
            "- scale={0.3,-1.0}",
            SOFTCAP,
            "- alibi",
            "- sinks",
            LDQ,
            LDK,
            LDV,
            LDO,
            REPRO,
            ALIGN,
        ],
    ),
    (
        "cast",
        &[
            "#B3x#R300x#C300",
            "f32:f32 {f32,bf16,f16}:{f32,bf16,f16,e4m3,e5m2,i8} {e4m3,e5m2,i8,i4,u4,e2m1,nf4}:{f32,bf16,f16} \
             {f64,f32,tf32,e4m3fnuz,u8,i32,i64}:{f64,f32,e5m2fnuz,i8,u8,i32} {i4:i4,u4:u4,e2m1:e2m1,i8:i8,nf4:nf4,bf16:e2m1,f32:i4}",
            "- x=col x=row/$C+{1,8}{,/100000} x=col/$R~16 x=panel{16,3}x{1,2,4}",
            "- y=col y=panel{16,64,3,8}x{1,2,4} y=row/$C+{3,8}{,/100000} y=col/$R~16",
            "- overflow=propagate",
            ALIGN,
        ],
    ),
    (
        "dequantize",
        &[
            "#R130x#C300 #R20x#C4200",
            "{e4m3,i8,e5m2}@{row,tensor}:{f32,bf16,f16} e4m3@{1x128,128x128,3x5,1x32^outer,mx}:{f32,bf16} \
             e2m1@{mx,mx^tiles,nv,nv^tiles,row}:{f32,bf16,f16} {i4,u4}@g{16,32,128}/{f16,bf16,f32}{,z}:{f32,f16,bf16} \
             i8@{1x64,g32/f32,g32/f16z,mx}:{f32,f64} nf4@g{32,64}/{f32,f16,bf16}:{f32,bf16} {e4m3@2x16^outer,i8@row}:f64",
            "- ldq=$C+{2,8} ldq=$C~16",
            LDY,
            REPRO,
            ALIGN,
        ],
    ),
    (
        "gather",
        &[
            ROWS,
            "f32:f32 {f32,bf16,f16}:{f32,bf16,f16} {e4m3,e5m2,i8,i4,e2m1,nf4}:{f32,bf16,f16} {i8:i8,i8:i32,i64:i64,e2m1:e2m1,i4:i4,f64:f32}",
            "from=#F300 from=1 from=0",
            "- ldt=$C+{1,8} ldt=$C~16",
            LDY,
            ALIGN,
        ],
    ),
    (
        "gemm",
        &[
            "1x#M320x#N320x#K1100 #B3x#M130x#N130x#K300 1x#M17x#N520x#K4200 1x#M320x#N24*16x#K24*16 #B3x#M320x#N12*32x#K9*128 \
             1x#M17x#N40*16x#K17*128",
            "f32:f32:f32 bf16:bf16:bf16 bf16:bf16:{bf16,f32} f16:f16:{f16,f32} i8:i8:i32 e4m3@{tensor,row}:e4m3@{tensor,row}:{bf16,f32} \
             e4m3@1x128:e4m3@{128x128,1x128}:bf16 e4m3@1x128:e4m3@128x128:{bf16,f16,f32} {bf16,f16}:{bf16,f16}:{bf16,f16,f32} {f32,bf16,f16,tf32}:{f32,bf16,f16,tf32}:{f32,bf16,f16,f64} \
             f64:f64:{f64,f32} {i8,u8}:{i8,u8}:{i32,f32} i8@{row,tensor}:i8@{row,tensor}:{f32,bf16,f16} \
             i8@{row,g32/f32}:{i8@g32/f32,i4@g32/f16,i8@128x128}:{f32,bf16} {i8,i4,u4}:{i8,i4,u4}:{i32,f32} \
             {e4m3,e5m2}:{e4m3,e5m2}:{bf16,f16,f32} {e4m3,e5m2}@{row,tensor}:{e4m3,e5m2}@{row,tensor}:{bf16,f16,f32} \
             e4m3@{1x128,1x128^outer}:e4m3@{1x128,128x128,128x128^outer}:{bf16,f32} e4m3@{1x16,16x16,1x64}:e4m3@{16x16,1x32}:bf16 \
             {e4m3,e5m2,e2m1}@{mx,mx^tiles}:{e4m3,e2m1,e5m2}@{mx,mx^tiles}:{bf16,f16,f32} \
             e2m1@{nv,nv^tiles}:e2m1@{nv,nv^tiles}:{bf16,f32} {e2m1,nf4,e4m3fnuz}:{e2m1,nf4,e5m2fnuz}:f32 \
             {f32,bf16,f16}:{i4,u4}@g{16,32,64,128}/{f16,bf16,f32}{,z}:{f32,bf16,f16} \
             {f32,bf16,f16}:{i8,u8}@g{16,32,128}/{f16,f32}{,z}:{f32,bf16,f16} \
             {f32,bf16,f16}:{i8,i4,e4m3,e5m2,e2m1}{@row,@tensor,}:{f32,bf16,f16} {f32,bf16,f16}:{e4m3,i8}@{128x128,1x128,1x32}:{f32,bf16,f16} \
             {f32,bf16,f16}:{e2m1,e4m3,i8}@mx:{f32,bf16,f16} {bf16,f16}:{e2m1@mx^tiles,e2m1@nv,e2m1@nv^tiles}:{bf16,f16,f32} \
             {f32,bf16,f16}:nf4@g{32,64}/{f32,f16,bf16}:{f32,bf16,f16} {f32,bf16,f16}:{f32,bf16,f16}:{e4m3,e5m2,i8,e2m1} \
             {f32,bf16,e4m3@row}:{f32,bf16,e4m3@row}:{e4m3@row,e4m3@tensor,e4m3@1x128,e5m2@1x32^outer,i8@row,e2m1@mx,e4m3@mx^tiles,e2m1@nv,i4@g32/f16}",
            "b=row b=col b=col b=col b=col b=col b=row/$N+{1,8} b=row/$N~16 b=col/$K+{1,8} b=col/$K~16 b=row/$N~16/{0,1500000} \
             b=panel{16,5}x{1,2,3} b=panel64x{1,4}",
            "- a=col a=row/$K+{1,8} a=row/$K~16 a=row/$K~16/1500000 a=col/$M+{1,8} a=col/$M~16",
            "- d=col d=row/$N+{1,8} d=row/$N~16 d=row/$N~16/200000 d=col/$M+{1,8}",
            "- acc=f32fast acc=f32q8",
            "- c=d c={f32,bf16,f16}",
            "- bias={f32,bf16,f16}",
            ACT,
            GATE,
            "- residual={f32,bf16,f16}",
            "- - - - sparse=2:4",
            REPRO,
            ALIGN,
        ],
    ),
    (
        "grouped_gemm",
        &[
            "#G9x#M130x#N200x#K300 #G4x#M300x#N130x#K520 {16,33}x#M130x#N130x#K130 #G5x#M300x#N24*16x#K5*128 #G17x#M64x#N12*32x#K8*64",
            "f32:f32:f32 bf16:bf16:bf16 bf16:bf16:{bf16,f32} e4m3@1x128:e4m3@128x128:{bf16,f32} \
             {f32,bf16,f16}:{f32,bf16,f16}:{f32,bf16,f16} {i8,u8}:i8:{i32,f32} i8@{row,tensor}:i8@row:{f32,bf16} \
             {e4m3,e5m2}@{row,tensor}:e4m3@{row,tensor}:{bf16,f16,f32} {e4m3,e5m2}:e4m3:bf16 e4m3@1x{128,16}:e4m3@{128x128,16x16,1x128}:bf16 \
             {e4m3,e2m1}@{mx,mx^tiles}:{e4m3,e2m1}@{mx,mx^tiles}:{bf16,f32} e2m1@{nv,nv^tiles}:e2m1@{nv,nv^tiles}:bf16 \
             {f32,bf16,f16}:{i4,u4}@g{16,32,128}/{f16,f32}{,z}:{f32,bf16,f16} {f32,bf16,f16}:{i8,e4m3,i4}@{row,tensor,128x128}:{f32,bf16,f16} \
             {bf16,f16}:{e2m1,e4m3}@mx:{bf16,f32} {bf16,f16}:nf4@g64/f32:bf16 bf16:bf16:{e4m3@row,e4m3@1x32,e4m3,i8@row}",
            "- grouping=masked",
            "b=row b=col b=col b=row/$N+{1,8} b=row/$N~16 b=col/$K~16 b=panel16x2 b=panel64x{1,4}",
            "- a=row/$K+{1,8} a=row/$K~16 a=col a=row/$K~16/200000",
            "- d=row/$N+{1,8} d=row/$N~16 d=col",
            "- acc=f32fast acc=f32q8",
            "- bias={f32,bf16}",
            ACT,
            GATE,
            "- residual={f32,bf16}",
            REPRO,
            ALIGN,
        ],
    ),
    (
        "norm",
        &[
            LONGER_ROWS,
            STORED,
            NORMS,
            "- eps={0.5,0.0,1e-12}",
            WEIGHT,
            "- bias={f32,bf16}",
            "- residual",
            LDX,
            LDY,
            REPRO,
            ALIGN,
        ],
    ),
    (
        "norm_backward",
        &[
            "#R130x#C300 #R20x#C8200 #R2000x#C20",
            FLOATS,
            NORMS,
            "- eps={0.5,1e-12}",
            WEIGHT,
            "- bias",
            LDX,
            "- ldg=$C+{3,8} ldg=$C~16",
            REPRO,
            ALIGN,
        ],
    ),
    (
        "quantize",
        &[
            ROWS,
            "f32:e4m3@row {f32,bf16,f16,f64}:e4m3@{row,tensor,1x128,128x128,3x5,mx} {f32,bf16,f16}:e5m2@{row,tensor,1x32,2x16^outer,mx} \
             {f32,bf16,f16}:i8@{row,tensor,1x64,g32/f32,g32/f16z,mx} {f32,bf16,f16}:e2m1@{mx,mx^tiles,nv,nv^tiles,row} \
             {f32,bf16,f16,f64}:{i4,u4}@g{16,32,128}/{f16,bf16,f32}{,z} {f32,bf16}:nf4@g{32,64}/{f32,f16,bf16} \
             {f32,bf16,f16}:{e4m3,e5m2,i8,e4m3fnuz@row,e2m1}",
            "- rule={floor,up,nearest}",
            "- overflow=propagate",
            "- scales=given",
            LDX,
            "- ldq=$C+{2,8} ldq=$C~16",
            REPRO,
            ALIGN,
        ],
    ),
    (
        "reduce",
        &[
            "#R130x#C300 #R20x#C8200 #R4200x#C20 #R3x#C20000",
            FLOATS,
            "op=sum op=mean op=max op=min op=amax",
            "- over=rows over=segments/{0,1,3,17}",
            LDX,
            REPRO,
            ALIGN,
        ],
    ),
    (
        "rope",
        &[
            "#T300x{1,8}x{64,128,80} #T70x#H9x#D300",
            FLOATS,
            "positions=#P40 positions=1",
            "- pairs=adjacent",
            "- rotated={0,2,4,64}",
            "- ldx={130,1032,2704}",
            "- ldy={132,1025,2704}",
            "- inverse",
            REPRO,
            ALIGN,
        ],
    ),
    ("softmax", &[LONGER_ROWS, FLOATS, "- scale={0.125,-2.0,0.0}", "- log", LDX, LDY, REPRO, ALIGN]),
];
