#include <hiredis/hiredis.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static redisContext *redis;

static redisReply *call(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    redisReply *reply = redisvCommand(redis, format, arguments);
    va_end(arguments);
    if (reply == NULL || reply->type == REDIS_REPLY_ERROR) {
        fprintf(stderr, "%s: %s\n", format, reply ? reply->str : redis->errstr);
        exit(1);
    }
    return reply; /* freeReplyObject(reply) in a program that goes on */
}

int main(int count, char **words) {
    const char *queue = words[2];
    double later = (double)time(NULL) + 3600;
    redis = redisConnect("127.0.0.1", atoi(words[1]));
    call("AUTH producer change-me");

    printf("%lld\n", call("ZADD evsched:{%s}:schedule 0 %s", queue,
                          "{\"task\":\"add\",\"args\":[1,2],\"id\":\"inline\",\"reply\":true}")->integer);
    call("MULTI");
    call("HSET evsched:{%s}:job:record payload %s priority 7", queue,
         "{\"task\":\"add\",\"args\":[3,4],\"reply\":true}");
    call("ZADD evsched:{%s}:schedule %f record", queue, later);
    redisReply *both = call("EXEC");
    printf("%lld %lld\n", both->element[0]->integer, both->element[1]->integer);
    call("ZADD evsched:{%s}:schedule XX 0 record", queue);
    call("HSET evsched:{%s}:job:gone payload %s", queue, "{\"task\":\"add\",\"args\":[5,6]}");
    call("ZADD evsched:{%s}:schedule %f gone", queue, later);
    printf("%lld\n", call("ZREM evsched:{%s}:schedule gone", queue)->integer);
    printf("%s\n", call("BLPOP evsched:{%s}:reply:inline 25", queue)->element[1]->str);
    printf("%s\n", call("BLPOP evsched:{%s}:reply:record 25", queue)->element[1]->str);
    redisReply *record = call("HGETALL evsched:{%s}:job:record", queue);
    for (size_t n = 0; n + 1 < record->elements; n += 2)
        if (record->element[n]->str[0] == 'o') /* outcome */
            printf("%s\n", record->element[n + 1]->str);
    printf("%lld\n", call("DEL evsched:{%s}:reply:record", queue)->integer);
    redisFree(redis);
    return 0;
}
