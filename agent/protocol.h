/*
 * The protocol of agent and host over the virtio-serial port PORT_NAME.
 *
 * A frame is a type (1 byte), a payload length (32 bits) and the payload; all integers are little-endian.
 * crates/vm/src/protocol.rs is the host's half.
 */
#ifndef INARCH_PROTOCOL_H
#define INARCH_PROTOCOL_H

#define PROTOCOL_VERSION 3
#define PORT_NAME "org.inarch.agent"

/* Where there are no virtio-serial ports, these ports of the host stand for them, reached by AF_VSOCK: the agent's, and that of the
 * first tree to be unpacked, whose port has the number 0 at the end of its name. */
#define SOCKET_OF_AGENT 1
#define SOCKET_OF_FIRST_TREE 1000

#define FRAME_HEADER 5
/* The longest payload: one argument or variable of execve(2) (MAX_ARG_STRLEN, 128 KiB) fits. */
#define FRAME_PAYLOAD_MAX (160 * 1024)

/* Stream numbers are the command's own descriptors. */
enum { STREAM_STDIN = 0, STREAM_STDOUT = 1, STREAM_STDERR = 2 };

/* Agent to host. */
enum {
	FRAME_HELLO = 0x01,        /* u32 version */
	FRAME_STARTED = 0x02,      /* u64 when the agent began, u64 when the command began: microseconds of CLOCK_BOOTTIME */
	FRAME_STDOUT = 0x03,       /* bytes; with a terminal both streams arrive here */
	FRAME_STDERR = 0x04,       /* bytes */
	FRAME_STDIN_CREDIT = 0x05, /* u32 more bytes that the host may send */
	FRAME_STDIN_CLOSED = 0x06, /* no process will read standard input any more */
	/* u32 exit status, u32 signal or 0; microseconds: u64 user time, u64 system time of it and what it waited for, then u64 for which the
	 * guest's processors had nothing to do meanwhile, u64 for which they waited for disks. */
	FRAME_EXIT = 0x07,
	FRAME_ERROR = 0x08,        /* u32 exit status for the host, text: the command did not start */
	FRAME_WARNING = 0x09,      /* text */
	FRAME_UNMOUNTED = 0x0a,    /* every file system is clean: the machine may be powered off */
	FRAME_READY = 0x0b,        /* all that the command needs is mounted: it starts within moments */
	FRAME_PROCESSES = 0x0c,    /* PROCESS_* events, each a u8 and what follows it */
};

/* What happened to a process of the guest, in order. */
enum {
	PROCESS_STARTED = 0x01,  /* u32 process that started it, u32 thread, u32 its process: the same number if it is new */
	PROCESS_EXECUTED = 0x02, /* u32 process, u32 length, its words, each ended by NUL; cut if they are long */
	PROCESS_ENDED = 0x03,    /* u32 thread, u32 its process, u32 status as of wait(2) */
	PROCESS_LOST = 0x04,     /* events are missing here */
};

/* Host to agent: the description of the session, in any order, then RUN. */
enum {
	FRAME_ARGUMENT = 0x80,       /* one argument of the command; repeated */
	FRAME_ENVIRONMENT = 0x81,    /* one NAME=VALUE; repeated */
	FRAME_DIRECTORY = 0x82,      /* working directory */
	FRAME_USER_NAME = 0x83,      /* USER[:GROUP], each by its number or by its name in the guest's /etc/passwd and /etc/group */
	FRAME_USER_IDS = 0x84,       /* u32 uid, u32 gid, u32 each supplementary group */
	FRAME_HOSTNAME = 0x85,       /* text */
	FRAME_CLOCK = 0x86,          /* u64 nanoseconds since 1970; sent again while the command runs */
	FRAME_NETWORK = 0x87,        /* 4 bytes each: address, netmask, gateway, name server */
	FRAME_MOUNT = 0x88,          /* u32 MOUNT_* flags, then type, source, target, options, each ended by NUL */
	FRAME_TERMINAL = 0x89,       /* u16 rows, u16 columns: the command gets a terminal */
	FRAME_OPEN_FILES = 0x8a,     /* u64 soft, u64 hard limit of open files */
	FRAME_UMASK = 0x8b,          /* u32 */
	FRAME_CLEAN_SHUTDOWN = 0x8c, /* empty: unmount at the end */
	FRAME_SCRATCH = 0x8d,        /* serial of the ext4 disk for writes to MOUNT_OVERLAID mounts */
	FRAME_MAKE_DIRECTORY = 0x8e, /* empty: make the working directory if it is missing */
	FRAME_RUN = 0x8f,            /* empty */
	FRAME_DISK = 0xa0,           /* serial of a disk that the command gets; repeated */
	FRAME_OBSERVE = 0xa1,        /* empty: report processes */
};

/* Host to agent: while the command runs. */
enum {
	FRAME_STDIN = 0x90,         /* bytes, no more than the credit */
	FRAME_STDIN_END = 0x91,     /* end of file */
	FRAME_OUTPUT_CREDIT = 0x92, /* u8 stream, u32 more bytes that the agent may send */
	FRAME_OUTPUT_CLOSED = 0x93, /* u8 stream: its reader is gone */
	FRAME_SIGNAL = 0x94,        /* u32 signal number of Linux */
	FRAME_WINDOW = 0x95,        /* u16 rows, u16 columns */
	FRAME_BYE = 0x96,           /* EXIT or ERROR has arrived */
};

/* Flags of a MOUNT. */
enum {
	MOUNT_READ_ONLY = 1 << 0,
	MOUNT_BY_SERIAL = 1 << 1, /* the source is the serial of a virtio-blk disk */
	MOUNT_NO_SUID = 1 << 2,
	MOUNT_NO_DEV = 1 << 3,
	MOUNT_NO_ATIME = 1 << 4,
	MOUNT_OVERLAID = 1 << 5, /* the lower layer of an overlayfs, whose upper one is on the scratch disk */
	MOUNT_UNPACKED = 1 << 6, /* the source is the port of an archive, which is unpacked into the mount */
	MOUNT_ON_SCRATCH = 1 << 7, /* for MOUNT_UNPACKED: a directory of the scratch disk, not a tmpfs */
	MOUNT_BY_SOCKET = 1 << 8, /* the source is the number of a port of the host, reached by AF_VSOCK */
};

/* The host's own exit statuses, as in FRAME_ERROR. */
enum { STATUS_FAILED = 125, STATUS_CANNOT_RUN = 126, STATUS_NOT_FOUND = 127 };

#endif
