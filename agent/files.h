/* Small files and folders. */
#ifndef INARCH_FILES_H
#define INARCH_FILES_H

#include <stdbool.h>
#include <stddef.h>

/* Reads a file's first line, without its line end, as far as there is room for it. */
bool read_line(const char *path, char *line, size_t capacity);
bool write_file(const char *path, const char *text);
/* mkdir -p: true if the folder is there at the end; else errno tells why. */
bool make_directories(const char *path);

#endif
