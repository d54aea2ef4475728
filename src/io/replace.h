/* Putting a new file or folder in the place of an old one so that a reader sees either the old or the new one, whole,
 * whatever happens in between (a kill, a full disk, a file-size limit).
 *
 * File:    gmal_replace_begin -> write to r.file -> gmal_replace_commit, or gmal_replace_abandon after an error.
 *          The temporary file has no name where the system has such files (O_TMPFILE), and a kill leaves nothing behind;
 *          elsewhere it is <folder>/.<name>.tmp-<process>.<n>, which a kill may leave, and nothing ever reads it.
 * Folder:  gmal_folder_begin -> write files into f.temp -> gmal_folder_commit, or gmal_folder_abandon.
 *          The temporary folder is <path>.tmp; one left behind by a kill is removed by the next begin. One writer at a
 *          time. Where the system can exchange two folders in one step that is used; elsewhere the old one is moved to
 *          <path>.old first, and gmal_folder_recover, which every reader calls, brings it back after a kill between
 *          the two moves.
 * Errors:  GMA_ERR_IO naming the path, GMA_ERR_OUT_OF_MEMORY. */
#ifndef GMAL_IO_REPLACE_H
#define GMAL_IO_REPLACE_H

#include <stdio.h>

#include "gma/base.h"

typedef struct gmal_replace {
    FILE *file;
    char *path, *temp;
} gmal_replace;

gma_status gmal_replace_begin(gmal_replace *r, const char *path);
gma_status gmal_replace_commit(gmal_replace *r); /* abandons by itself when it fails */
void gmal_replace_abandon(gmal_replace *r);

/* The whole file in one call. */
gma_status gmal_replace_file(const char *path, const void *data, size_t bytes);

typedef struct gmal_folder {
    char *path, *temp, *old;
} gmal_folder;

gma_status gmal_folder_begin(gmal_folder *f, const char *path);
gma_status gmal_folder_commit(gmal_folder *f); /* abandons by itself when it fails */
void gmal_folder_abandon(gmal_folder *f);
gma_status gmal_folder_recover(const char *path); /* GMA_OK also when there is nothing to recover */

/* 0 makes begin act as on a system without files without a name. For tests. */
extern int gmal_replace_nameless;

/* 0 makes commit act as on a system that cannot exchange two folders. For tests. */
extern int gmal_folder_exchange;

#endif
