// Has a kernel of User-Mode Linux that does not know AMX, such as Linux 6.1, run on processors with it. It is loaded before the C library (LD_PRELOAD).
//
// Such a kernel sets the registers of its guest's processes by PTRACE_SETREGSET, with 2,696 bytes of an XSAVE area: all up to PKRU. This machine's
// kernel takes a whole area or none (xstateregs_set of arch/x86/kernel/fpu/regset.c), and with AMX that has 11,008 bytes. So the rest is added here: zeros, the
// initial state. The guest's processes have no other: no kernel of User-Mode Linux lets them ask for AMX (ARCH_REQ_XCOMP_PERM of arch_prctl(2)).

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>

// Of linux/ptrace.h and linux/elf.h. <sys/ptrace.h> declares ptrace(2) with variable arguments.
enum { PEEKTEXT = 1, PEEKUSER = 3, GETREGSET = 0x4204, SETREGSET = 0x4205, NT_X86_XSTATE = 0x202 };

// One thread of the program traces, and its handlers of signals do not. Its stacks are too small for an area.
static unsigned char area[1 << 16];
static size_t area_size;

static long system_call(long request, long pid, void *address, void *data)
{
    long result;
    register void *fourth __asm__("r10") = data;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_ptrace), "D"(request), "S"(pid), "d"(address), "r"(fourth)
                     : "rcx", "r11", "memory");
    return result;
}

// The bytes of an area; 0 if they are not known.
static size_t size_of_area(long pid)
{
    struct iovec all = {area, sizeof area};
    if (area_size == 0 && system_call(GETREGSET, pid, (void *)NT_X86_XSTATE, &all) == 0)
        area_size = all.iov_len;
    return area_size;
}

// In place of the C library's.
long ptrace(int request, long pid, void *address, void *data)
{
    struct iovec whole = {area, 0};
    if (request == SETREGSET && (uintptr_t)address == NT_X86_XSTATE) {
        const struct iovec *given = data;
        whole.iov_len = size_of_area(pid);
        if (given->iov_len < whole.iov_len) {
            memcpy(area, given->iov_base, given->iov_len);
            memset(area + given->iov_len, 0, whole.iov_len - given->iov_len);
            data = &whole;
        }
    }
    // The system call stores what it reads, and the C library's function returns that.
    long word = 0;
    int peeks = request >= PEEKTEXT && request <= PEEKUSER;
    long result = system_call(request, (int)pid, address, peeks ? &word : data);
    if (result < 0) {
        errno = -result;
        return -1;
    }
    if (peeks)
        errno = 0;
    return peeks ? word : result;
}
