job "x" {
  update { 
    max_parallel = 2 
    min_healthy_time = "10s"
  }
  periodic { 
    cron = "@daily" 
    prohibit_overlap = true
  }
  parameterized { 
    payload = "optional" 
    meta_required = ["a"]
  }
  migrate { max_parallel = 1 }
  reschedule { 
    unlimited = true
    delay = "30s"
  }
  spread { 
    attribute = "${node.datacenter}" 
    weight = 50
    target "dc1" { percent = 60 }
    target "dc2" { percent = 40 }
  }
  ui { 
    description = "x" 
    link { 
      label = "l" 
      url = "u" 
    }
  }
  group "g" {
    meta { a = "b" }
    scaling { 
      min = 1 
      max = 5
      policy { 
        cooldown = "1m"
        check "avg" { 
          source = "prom"
          strategy "tv" { target = 1 }
        }
      }
    }
    ephemeral_disk { 
      size = 500 
      sticky = true
    }
    disconnect { 
      lost_after = "1h" 
      replace = false
      reconcile = "keep_original"
    }
    shutdown_delay = "5s"
    consul { cluster = "x" }
    volume "c" { 
      type = "csi"
      source = "s"
      access_mode = "single-node-writer"
      attachment_mode = "file-system"
      mount_options { 
        fs_type = "ext4" 
        mount_flags = ["a"]
      }
    }
    network { 
      dns { servers = ["1.1.1.1"] }
      hostname = "h"
      cni { args = { a = "b" } }
    }
    service {
      connect { 
        sidecar_service {
          proxy { 
            upstreams { 
              destination_name = "a" 
              local_bind_port = 80
            }
            config { a = 1 }
            expose {
 path { path = "/a" } 
}
            transparent_proxy { uid = "1" }
          }
        }
        sidecar_task { 
          resources { cpu = 5 }
          config { x = "y" }
        }
      }
      check_restart { limit = 3 }
      meta { a = "b" }
      canary_meta { c = "d" }
      tagged_addresses { lan = "x" }
      identity { aud = ["x"] }
      weights { passing = 3 }
    }
    service {
      name = "gw"
      connect {
        gateway {
          proxy {
            connect_timeout = "500ms"
            envoy_gateway_bind_addresses "a" { 
              address = "1.1.1.1" 
              port = 80
            }
          }
          ingress { 
            tls { enabled = true }
            listener { 
              port = 8080
              protocol = "http"
              service { 
                name = "s"
                hosts = ["a"]
                request_headers {
 add { a = "b" }
 }
              }
            }
          }
        }
      }
    }
    task "t" {
      driver = "x"
      service { port = 8080 }
      leader = true
      shutdown_delay = "3s"
      csi_plugin { 
        id = "a" 
        type = "node"
        mount_dir = "/x"
      }
    }
  }
}
