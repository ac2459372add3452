job "x" {
  group "g" {
    task "t" {
      driver = "docker"
      config {
        image = "a"
        mount { 
          opts = { a = "b" }
          l = [{a=1},{b=[{c=2}]}]
        }
        l = [{a={x=1}},{b=2}]
        labels { 
          a = "b" 
          c = "${NOMAD_X}"
        }
        blk "lab" { z = 1 }
        blk "lab2" "q" { z = 2 }
        big = 12345678901234567890
        neg = -5
        exp = 1.0
        tup = ["a", 1, true]
        emp {}
      }
    }
  }
}
