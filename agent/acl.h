/* POSIX access control lists: from the text of an archive to the attribute that the kernel takes. */
#ifndef INARCH_ACL_H
#define INARCH_ACL_H

#include <stddef.h>
#include <stdint.h>

/* Entries of one list that are taken: as many as fit an attribute of 64 KiB. */
#define ACL_ENTRIES_MAX 8191
#define ACL_BYTES_MAX (4 + 8 * ACL_ENTRIES_MAX)

/* Puts the list (`user::rwx,user:1000:r-x,...`, owners as numbers) into `value` as the kernel has it
 * (include/uapi/linux/posix_acl_xattr.h). Its length, or 0 if the text makes no sense. */
size_t acl_from_text(const char *text, uint8_t value[ACL_BYTES_MAX]);

#endif
