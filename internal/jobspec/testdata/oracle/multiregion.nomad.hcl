job "x" {
  group "g" {
    volume "a" {
      type = "host"
    }
    volume "b" { source = "q" }
    stop_after_client_disconnect = "1m"
    prevent_reschedule_on_lost = true
    vault { policies = ["p"] }
    task "t" { 
       kill_timeout = 5 
       env = { "a.b" = "x" }
       meta = { "c.d" = 1 }
    }
    task "u" {
 vault { change_mode = "noop" }
 }
  }
  multiregion { 
    strategy { max_parallel = 1 }
    region "west" { 
      count = 2
      datacenters = ["w"]
      meta { a = "b" }
    }
  }
}
