/* Reads small files, and makes directories. */
#ifndef INARCH_FILES_H
#define INARCH_FILES_H

#include <stdbool.h>
#include <stddef.h>

/* Reads a file's first line, without its line end, as far as it fits. */
bool read_line(const char *path, char *line, size_t capacity);
bool write_file(const char *path, const char *text);
/* Like mkdir -p: true if the directory exists afterwards; else errno has the reason. */
bool make_directories(const char *path);

#endif
