#define _POSIX_C_SOURCE 200809L
#include "cli/patience.h"

#include <stdlib.h>
#include <unistd.h>

/* main hands a verb its own part of argv; what execv needs begins one before it. */
void gma_cli_be_patient(char **argv) {
    if (getenv("OMP_WAIT_POLICY") != NULL || setenv("OMP_WAIT_POLICY", "passive", 1) != 0) {
        return;
    }
    execv("/proc/self/exe", argv - 1);
}
