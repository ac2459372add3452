job "x" {
  name = "other"
  id = "third"
  group "g" {
    task "t" {
      driver = "raw_exec"
      user = "u"
      config { command = "x" }
      volume_mount { 
        volume = "v" 
        destination = "/x"
      }
      lifecycle { hook = "prestart" }
      vault {}
      dispatch_payload { file = "x" }
      identity { env = true }
      identity { 
        name = "aws" 
        aud = ["a"]
        ttl = "1h"
      }
      action "a" { 
        command = "ls"
        args = ["-l"] 
      }
      template {
        data = "x"
        destination = "d"
        change_mode = "script"
        change_script { 
          command = "/x"
          fail_on_error = true
        }
        wait { 
          min = "1s" 
          max = "2s" 
        }
        uid = 5
      }
      scaling "cpu" { 
        enabled = true
        min = 10
        max = 20
        policy { a = 1 }
      }
      secret "s" { 
        provider = "vault" 
        path = "x"
        config { a = 1 }
      }
      schedule { 
        cron { 
          start = "x"
          end = "y"
        }
      }
      resources { 
        cores = 2 
        memory_max = 5 
        numa { affinity = "require" }
      }
    }
  }
}
