# Without a library: Redis's protocol over a socket, as for a language that has none.
lassign $argv port queue
set link [socket 127.0.0.1 $port]
fconfigure $link -translation binary -encoding binary

proc redis args {
    global link
    puts -nonewline $link "*[llength $args]\r\n"
    foreach word $args {
        set word [encoding convertto utf-8 $word]
        puts -nonewline $link "\$[string length $word]\r\n$word\r\n"
    }
    flush $link
    return [reply]
}

proc reply {} {
    global link
    set line [string range [gets $link] 0 end-1]
    set rest [string range $line 1 end]
    switch -exact [string index $line 0] {
        + - : { return $rest }
        - { error $rest }
        $ {
            if {$rest < 0} { return "" }
            return [encoding convertfrom utf-8 [string range [read $link [expr {$rest + 2}]] 0 end-2]]
        }
        * {
            set replies {}
            for {set n 0} {$n < $rest} {incr n} { lappend replies [reply] }
            return $replies
        }
    }
}

redis AUTH producer change-me
set root "evsched:{$queue}:"
set later [expr {[clock seconds] + 3600}]

puts [redis ZADD ${root}schedule 0 {{"task":"add","args":[1,2],"id":"inline","reply":true}}]
redis MULTI
redis HSET ${root}job:record payload {{"task":"add","args":[3,4],"reply":true}} priority 7
redis ZADD ${root}schedule $later record
puts [redis EXEC]
redis ZADD ${root}schedule XX 0 record
redis HSET ${root}job:gone payload {{"task":"add","args":[5,6]}}
redis ZADD ${root}schedule $later gone
puts [redis ZREM ${root}schedule gone]
puts [lindex [redis BLPOP ${root}reply:inline 25] 1]
puts [lindex [redis BLPOP ${root}reply:record 25] 1]
puts [dict get [redis HGETALL ${root}job:record] outcome]
puts [redis DEL ${root}reply:record]
