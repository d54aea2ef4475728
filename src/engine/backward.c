#include "engine/chunk.h"
size_t gmai_backward_shared(const gmai_plan *p) { return gmai_forward_shared(p); }
size_t gmai_backward_work(const gmai_plan *p) { return gmai_forward_work(p); }
void gmai_engine_backward(const gmai_call *c) { (void)c; }
