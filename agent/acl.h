/* POSIX access control lists: converts an archive's text to the kernel's attribute. */
#ifndef INARCH_ACL_H
#define INARCH_ACL_H

#include <stddef.h>
#include <stdint.h>

/* The most entries of a list: as many as fit an attribute of 64 KiB. */
#define ACL_ENTRIES_MAX 8191
#define ACL_BYTES_MAX (4 + 8 * ACL_ENTRIES_MAX)

/* Converts a list (`user::rwx,user:1000:r-x,...`, owners as numbers) to the kernel's format in `value`
 * (include/uapi/linux/posix_acl_xattr.h). Returns its length, or 0 if the text is invalid. */
size_t acl_from_text(const char *text, uint8_t value[ACL_BYTES_MAX]);

#endif
