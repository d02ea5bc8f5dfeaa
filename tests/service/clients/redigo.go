package main

import (
	"fmt"
	"log"
	"os"
	"time"

	"github.com/gomodule/redigo/redis"
)

func main() {
	port, queue := os.Args[1], os.Args[2]
	client, err := redis.Dial("tcp", "127.0.0.1:"+port,
		redis.DialUsername("producer"), redis.DialPassword("change-me"), redis.DialReadTimeout(30*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	do := func(command string, arguments ...interface{}) interface{} {
		reply, err := client.Do(command, arguments...)
		if err != nil {
			log.Fatal(command, ": ", err)
		}
		return reply
	}
	root := "evsched:{" + queue + "}:"
	later := float64(time.Now().Add(time.Hour).UnixMilli()) / 1000

	fmt.Println(do("ZADD", root+"schedule", 0, `{"task":"add","args":[1,2],"id":"inline","reply":true}`))
	client.Send("MULTI")
	client.Send("HSET", root+"job:record", "payload", `{"task":"add","args":[3,4],"reply":true}`, "priority", 7)
	client.Send("ZADD", root+"schedule", later, "record")
	both, err := redis.Ints(client.Do("EXEC"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(both[0], both[1])
	do("ZADD", root+"schedule", "XX", 0, "record")
	do("HSET", root+"job:gone", "payload", `{"task":"add","args":[5,6]}`)
	do("ZADD", root+"schedule", later, "gone")
	fmt.Println(do("ZREM", root+"schedule", "gone"))
	for _, id := range []string{"inline", "record"} {
		reply, err := redis.Strings(do("BLPOP", root+"reply:"+id, 25), nil)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(reply[1])
	}
	record, err := redis.StringMap(do("HGETALL", root+"job:record"), nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(record["outcome"])
	fmt.Println(do("DEL", root+"reply:record"))
}
