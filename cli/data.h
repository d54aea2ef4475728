/* gma data: one function a kind of work; each has its own option table. */
#ifndef GMA_CLI_DATA_H
#define GMA_CLI_DATA_H

int gma_data_cli_learn(int argc, char **argv);
int gma_data_cli_encode(int argc, char **argv);
int gma_data_cli_decode(int argc, char **argv);
int gma_data_cli_info(int argc, char **argv);
int gma_data_cli_listops(int argc, char **argv);
int gma_data_cli_imdb(int argc, char **argv);
int gma_data_cli_mqar(int argc, char **argv);


#endif
