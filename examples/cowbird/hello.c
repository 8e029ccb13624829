// Writes into remote memory and reads it back. Needs `sluice rack up --no-metadata` and `sluice cowbird engine`.
#include <cowbird.h>
#include <stdio.h>

int main(void) {
  cowbird_t* cowbird = cowbird_open(NULL);
  if (cowbird == NULL || cowbird_region_add(cowbird, "memory1", 0, 1 << 20, 0) < 0) {
    fprintf(stderr, "%s\n", cowbird_last_error());
    return 1;
  }
  cowbird_thread_t* me = cowbird_thread(cowbird, 0);
  int group = cowbird_poll_create(me);
  char text[6] = "hello", back[6];
  cowbird_async_write(me, 0, text, 4096, sizeof text);
  cowbird_poll_add(me, group, cowbird_async_read(me, 0, 4096, back, sizeof back)); /* sees the write before it */
  cowbird_completion_t done = {.status = COWBIRD_NO_SUCH_REQUEST}; /* stays so where nothing is waited for */
  int error = cowbird_poll_wait(me, group, &done, 1, -1);          /* below 0: no engine is there, say */
  if (error >= 0) error = done.status;
  if (error != 0) {
    fprintf(stderr, "%s\n", cowbird_strerror(error));
    return 1;
  }
  puts(back);
  cowbird_close(cowbird);
}
