// How kernels that work element by element share rows among groups of 256.
//
//         ACROSS runs            A tile is DOWN rows of ACROSS runs of eight columns, so that a thread has DEEP runs, each DOWN / DEEP
//        ┌───────────┐           rows from the next: neighbours take neighbouring runs, and what a thread loads is under way together.
//   DOWN │ . . . . . │           Groups take tiles in turn.
//        └───────────┘
//
// ACROSS and DEEP are constants of whoever includes this, `rows`, `cols` and `tiles_across` arguments.

const uint APART = 256u / ACROSS;
const uint DOWN = APART * DEEP;

// A thread's place: its first row, and the first column of its runs.
uvec2 place_in(uint tile) {
    const uint thread = gl_LocalInvocationIndex;
    const uint down = tile / tiles_across;
    return uvec2(down * DOWN + thread / ACROSS, ((tile - down * tiles_across) * ACROSS + thread % ACROSS) * 8u);
}

uint tiles() {
    return (rows + DOWN - 1u) / DOWN * tiles_across;
}
