/* A slow or full disk for one process, which also notes how much of each file has reached the disk. DISK names a folder:
 * `delay` there has the milliseconds that each sync takes, and while `full` exists no write to a file succeeds. `synced`
 * gets a line for each sync that has ended: the bytes of the file when it began, and its path. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int (*sync_call)(int);
typedef ssize_t (*write_call)(int, const void *, size_t);

static ssize_t real_write(int file, const void *data, size_t size) {
  static write_call real;
  if (!real) real = (write_call)dlsym(RTLD_NEXT, "write");
  return real(file, data, size);
}

static int in_folder(const char *name, int flags) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", getenv("DISK"), name);
  return open(path, flags, 0600);
}

static void wait_for_disk(void) {
  char text[32] = "";
  int file = in_folder("delay", O_RDONLY);
  if (file < 0) return;
  if (read(file, text, sizeof text - 1) > 0) {
    long milliseconds = atol(text);
    struct timespec length = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&length, NULL);
  }
  close(file);
}

static int synced(int file, sync_call real) {
  struct stat about;
  char link[64], path[512], line[600];
  int known = !fstat(file, &about) && S_ISREG(about.st_mode);
  wait_for_disk();
  int failed = real(file);
  if (failed || !known) return failed;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return failed;
  path[length] = 0;
  int notes = in_folder("synced", O_WRONLY | O_APPEND | O_CREAT);
  snprintf(line, sizeof line, "%lld %s\n", (long long)about.st_size, path);
  real_write(notes, line, strlen(line));
  close(notes);
  return failed;
}

int fdatasync(int file) { return synced(file, (sync_call)dlsym(RTLD_NEXT, "fdatasync")); }

int fsync(int file) { return synced(file, (sync_call)dlsym(RTLD_NEXT, "fsync")); }

ssize_t write(int file, const void *data, size_t size) {
  struct stat about;
  if (!fstat(file, &about) && S_ISREG(about.st_mode)) {
    int full = in_folder("full", O_RDONLY);
    if (full >= 0) {
      close(full);
      errno = ENOSPC;
      return -1;
    }
  }
  return real_write(file, data, size);
}
