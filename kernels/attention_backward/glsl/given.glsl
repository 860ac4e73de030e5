// What gradients of attention are told beside attention itself: a forward problem that is neither scaled nor paged and has its
// log-sum-exp. Behind that stand D, the products of O's rows with those of its gradient; that gradient; and a result.

#include "attention/glsl/problem.glsl"

#define AT_PRODUCTS AT_SCRATCH
#define AT_GRAD_O (AT_SCRATCH + 1u)
#define AT_RESULT (AT_SCRATCH + 2u)
