# cmake -DOUT=FILE -DHEADERS=a,b,c -P interface_hash.cmake: a header with the hash of what a program and a library that it
# loads have to agree on. Written only when it changes.
string(REPLACE "," ";" headers "${HEADERS}")
set(all "")
foreach(header ${headers})
  file(SHA256 ${header} hash)
  string(APPEND all ${hash})
endforeach()
string(SHA256 hash "${all}")
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define TESSERA_INTERFACE_HASH \"${hash}\"\n")
