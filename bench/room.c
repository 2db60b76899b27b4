/* The participants of a room, on one thread: each publishes at a steady rate and receives what the others publish.

   room ws|sse PORT PARTICIPANTS PER_S SECONDS TOPIC

   Prints "ready" once all participants receive, waits for a line on its standard input, runs, and prints one line of
   JSON. It is compiled because an interpreted reader of half a million records a second would be slower than the
   server. Records are not parsed: every record has its send time in "at", and every answer to a publish in
   "request_id" (WebSocket) or in the order of the answers (HTTP). */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 18, CARRY_BYTES = 64, SILENCE_MS = 5000, LONGEST_US = 4000000, IN_FLIGHT = 1024, TEXT = 110 };

typedef struct {
    int read_fd, write_fd;      /* the same for a WebSocket */
    double phase;               /* of a period, at which it publishes */
    char carry[CARRY_BYTES];    /* the end of the last read: a number may be in two pieces */
    int carried;
    uint64_t sent_ns[IN_FLIGHT]; /* of HTTP writes without an answer, a ring */
    unsigned sent, answered;
} Participant;

typedef struct {
    uint32_t *counts;
    uint64_t total;
} Histogram;

static Histogram deliveries, acks, lateness;
static int is_socket, port, people, per_s;
static const char *topic;
static char block[CARRY_BYTES + READ_BYTES + 1];

static void fail(const char *what) {
    fprintf(stderr, "room: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static uint64_t now_ns(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static void note(Histogram *histogram, uint64_t took_ns) {
    uint64_t us = took_ns / 1000;
    histogram->counts[us < LONGEST_US ? us : LONGEST_US - 1]++;
    histogram->total++;
}

static double percentile_ms(const Histogram *histogram, double share) {
    uint64_t wanted = (uint64_t)(share * (double)histogram->total), seen = 0;
    for (int us = 0; us < LONGEST_US; us++) {
        seen += histogram->counts[us];
        if (seen > wanted) return us / 1000.0;
    }
    return 0;
}

/* --- opening */

static int connect_to_server(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) fail("cannot connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void send_all(int fd, const char *data, size_t size) {
    if (send(fd, data, size, MSG_NOSIGNAL) != (ssize_t)size) fail("the server does not read");
}

static void read_until(int fd, const char *end) {
    size_t got = 0;
    block[0] = 0;
    while (!strstr(block, end)) {
        ssize_t n = recv(fd, block + got, READ_BYTES - got, 0);
        if (n <= 0) fail("a participant was refused");
        got += (size_t)n;
        block[got] = 0;
    }
}

static size_t masked_text(char *frame, const char *text) {
    static const unsigned char key[4] = {0x37, 0xfa, 0x21, 0x3d};
    size_t size = strlen(text), at = 2;
    frame[0] = (char)0x81;
    frame[1] = (char)(0x80 | (size < 126 ? size : 126));
    if (size >= 126) {
        frame[at++] = (char)(size >> 8);
        frame[at++] = (char)size;
    }
    memcpy(frame + at, key, 4);
    at += 4;
    for (size_t i = 0; i < size; i++) frame[at + i] = (char)(text[i] ^ key[i % 4]);
    return at + size;
}

static void open_socket(Participant *one, int number) {
    char text[1024], frame[1100];
    int size = snprintf(text, sizeof text,
                        "GET /v0/ws HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
                        "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n");
    one->read_fd = one->write_fd = connect_to_server();
    send_all(one->read_fd, text, (size_t)size);
    read_until(one->read_fd, "\r\n\r\n");
    snprintf(text, sizeof text, "{\"op\":\"subscribe\",\"topic\":\"%s\",\"tail\":true,\"node\":\"p%d\"}", topic, number);
    send_all(one->read_fd, frame, masked_text(frame, text));
    read_until(one->read_fd, "\"caught_up\"");
}

static void open_stream(Participant *one, int number) {
    char body[256], text[1024], url[256] = "";
    int size = snprintf(body, sizeof body, "{\"topics\":{\"%s\":{\"tail\":true}},\"node\":\"p%d\"}", topic, number);
    one->write_fd = connect_to_server();
    size = snprintf(text, sizeof text,
                    "POST /v0/watch HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                    "content-length: %d\r\n\r\n%s", size, body);
    send_all(one->write_fd, text, (size_t)size);
    read_until(one->write_fd, "\"performance\"");
    char *found = strstr(block, "\"stream_url\":\"");
    if (!found || sscanf(found + 14, "%255[^\"]", url) != 1) fail("no watch session was created");
    one->read_fd = connect_to_server();
    size = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n", url);
    send_all(one->read_fd, text, (size_t)size);
    read_until(one->read_fd, "caught-up");
}

/* --- the room */

static void publish(Participant *one, int number) {
    static char filler[TEXT + 1];
    char data[256], text[1024], frame[1100];
    uint64_t at = now_ns(CLOCK_MONOTONIC);
    int size = snprintf(data, sizeof data, "{\"at\":%llu,\"text\":\"\"}", (unsigned long long)at);
    memset(filler, 'x', TEXT);
    snprintf(data, sizeof data, "{\"at\":%llu,\"text\":\"%.*s\"}", (unsigned long long)at, TEXT - size, filler);
    if (is_socket) {
        snprintf(text, sizeof text,
                 "{\"op\":\"publish\",\"topic\":\"%s\",\"node\":\"p%d\",\"request_id\":%llu,\"return_seqs\":false,"
                 "\"records\":[{\"data\":%s}]}", topic, number, (unsigned long long)at, data);
        send_all(one->write_fd, frame, masked_text(frame, text));
        return;
    }
    int body = snprintf(frame, sizeof frame, "{\"node\":\"p%d\",\"records\":[{\"data\":%s}]}", number, data);
    size = snprintf(text, sizeof text,
                    "POST /v0/topics/%s?return_seqs=false HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                    "content-type: application/json\r\ncontent-length: %d\r\n\r\n%s", topic, body, frame);
    if (one->sent - one->answered == IN_FLIGHT) fail("the server does not answer");
    one->sent_ns[one->sent++ % IN_FLIGHT] = at;
    send_all(one->write_fd, text, (size_t)size);
}

/* Note the latency of every number behind `key`. Return where the part begins that must be read again with more. */
static const char *note_numbers(const char *at, const char *end, const char *key, Histogram *histogram, uint64_t now) {
    size_t size = strlen(key);
    for (;;) {
        const char *found = memmem(at, (size_t)(end - at), key, size);
        if (!found) return end - at < (long)size ? at : end - size + 1;
        const char *digit = found + size;
        uint64_t number = 0;
        while (digit < end && *digit >= '0' && *digit <= '9') number = number * 10 + (uint64_t)(*digit++ - '0');
        if (digit == end) return found;
        note(histogram, now - number);
        at = digit;
    }
}

static void receive(Participant *one) {
    memcpy(block, one->carry, (size_t)one->carried);
    ssize_t n = recv(one->read_fd, block + one->carried, READ_BYTES, MSG_DONTWAIT);
    if (n <= 0) {
        if (n < 0 && errno == EAGAIN) return;
        fail("a participant was cut off");
    }
    uint64_t now = now_ns(CLOCK_MONOTONIC);
    const char *end = block + one->carried + n;
    const char *left = note_numbers(block, end, "\"at\":", &deliveries, now);
    if (is_socket) {
        /* What is carried over is shorter than a whole number of the other kind: nothing is counted twice. */
        const char *more = note_numbers(block, end, "\"request_id\":", &acks, now);
        if (more < left) left = more;
    }
    one->carried = (int)(end - left);
    if (one->carried > CARRY_BYTES) fail("a number is too long");
    memmove(one->carry, left, (size_t)one->carried);
}

static void receive_answers(Participant *one) {
    ssize_t n = recv(one->write_fd, block, READ_BYTES, MSG_DONTWAIT);
    if (n <= 0) {
        if (n < 0 && errno == EAGAIN) return;
        fail("a writer was cut off");
    }
    uint64_t now = now_ns(CLOCK_MONOTONIC);
    const char *at = block, *end = block + n;
    while ((at = memmem(at, (size_t)(end - at), "HTTP/1.1 ", 9))) {
        if (memcmp(at + 9, "200", 3)) fail("a write was refused");
        note(&acks, now - one->sent_ns[one->answered++ % IN_FLIGHT]);
        at += 12;
    }
}

static int by_phase(const void *left, const void *right) {
    double a = ((const Participant *)left)->phase, b = ((const Participant *)right)->phase;
    return (a > b) - (a < b);
}

static void arm(int timer, uint64_t at_ns) {
    struct itimerspec when = {.it_value = {(time_t)(at_ns / 1000000000u), (long)(at_ns % 1000000000u)}};
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL)) fail("cannot set a timer");
}

static void run(Participant *all, long messages) {
    struct epoll_event ready[256], event = {.events = EPOLLIN};
    int poll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    uint64_t wanted = (uint64_t)messages * (uint64_t)(people - 1), begun = now_ns(CLOCK_MONOTONIC) + 10000000u, due;
    long next = 0;
    for (int i = 0; i < people; i++) {
        event.data.u32 = (uint32_t)i * 2;
        epoll_ctl(poll, EPOLL_CTL_ADD, all[i].read_fd, &event);
        event.data.u32++;
        if (!is_socket) epoll_ctl(poll, EPOLL_CTL_ADD, all[i].write_fd, &event);
    }
    event.data.u32 = UINT32_MAX;
    epoll_ctl(poll, EPOLL_CTL_ADD, timer, &event);
    arm(timer, begun);
    while (next < messages || deliveries.total < wanted || acks.total < (uint64_t)messages) {
        int n = epoll_wait(poll, ready, 256, SILENCE_MS);
        if (n == 0) break;
        for (int i = 0; i < n; i++) {
            uint32_t who = ready[i].data.u32;
            if (who == UINT32_MAX) continue;
            if (who % 2) receive_answers(&all[who / 2]);
            else receive(&all[who / 2]);
        }
        for (; next < messages; next++) {
            Participant *one = &all[next % people];
            due = begun + (uint64_t)(((double)(next / people) + one->phase) / per_s * 1e9);
            uint64_t now = now_ns(CLOCK_MONOTONIC);
            if (due > now) break;
            note(&lateness, now - due);
            publish(one, (int)(next % people));
        }
        if (next < messages) arm(timer, due);
        else arm(timer, 0);
    }
    errno = 0;
    if (deliveries.total != wanted) {
        fprintf(stderr, "room: %llu records arrived of %llu\n", (unsigned long long)deliveries.total,
                (unsigned long long)wanted);
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc != 7) fail("usage: room ws|sse PORT PARTICIPANTS PER_S SECONDS TOPIC");
    is_socket = !strcmp(argv[1], "ws");
    port = atoi(argv[2]), people = atoi(argv[3]), per_s = atoi(argv[4]), topic = argv[6];
    long messages = (long)(atof(argv[5]) * per_s) * people;
    Participant *all = calloc((size_t)people, sizeof *all);
    Histogram *histograms[] = {&deliveries, &acks, &lateness};
    for (int i = 0; i < 3; i++) histograms[i]->counts = calloc(LONGEST_US, sizeof(uint32_t));
    srand(7);
    for (int i = 0; i < people; i++) all[i].phase = (double)rand() / ((double)RAND_MAX + 1);
    qsort(all, (size_t)people, sizeof *all, by_phase);
    for (int i = 0; i < people; i++) {
        if (is_socket) open_socket(&all[i], i);
        else open_stream(&all[i], i);
    }
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return 1;
    uint64_t wall = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    run(all, messages);
    double busy = (double)(now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / (double)(now_ns(CLOCK_MONOTONIC) - wall);
    printf("{\"deliveries\":%llu,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"p999_ms\":%.3f,\"ack_p50_ms\":%.3f,"
           "\"ack_p99_ms\":%.3f,\"late_p99_ms\":%.3f,\"busy\":%.3f}\n",
           (unsigned long long)deliveries.total, percentile_ms(&deliveries, 0.5), percentile_ms(&deliveries, 0.99),
           percentile_ms(&deliveries, 0.999), percentile_ms(&acks, 0.5), percentile_ms(&acks, 0.99),
           percentile_ms(&lateness, 0.99), busy);
    return 0;
}
