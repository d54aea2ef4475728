/* One source, two precisions. A typed file sets GMAL_PRECISION to f32 or f64 before it includes this header and then
 * uses gmal_real and GMAL_T(name), which becomes name_f32 or name_f64. The float build is the product; the double build
 * has the naive mixer inside and serves the finite-difference tests. */
#define GMAL_CAT_(a, b) a##_##b
#define GMAL_CAT(a, b) GMAL_CAT_(a, b)
#define GMAL_T(name) GMAL_CAT(name, GMAL_PRECISION)
#define GMAL_REAL_f32 float
#define GMAL_REAL_f64 double
#define GMAL_REAL_OF_(p) GMAL_REAL_##p
#define GMAL_REAL_OF(p) GMAL_REAL_OF_(p)
#undef gmal_real
#define gmal_real GMAL_REAL_OF(GMAL_PRECISION)
