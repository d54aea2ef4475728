/* How threads wait for each other. */
#ifndef GMA_CLI_PATIENCE_H
#define GMA_CLI_PATIENCE_H

/* OpenMP threads by default wait by spinning. On a machine that something else uses too, that made training 30 times
 * slower (a thread spins out its time slice while the one it waits for cannot run); sleeping costs nothing measurable
 * otherwise. OpenMP reads OMP_WAIT_POLICY only before main, hence the program starts itself anew with it set, once, and
 * only when the user has not set it. Where that is not possible it simply goes on. */
void gma_cli_be_patient(char **argv);

#endif
