# make install: headers, libraries, program, pkg-config files, CMake package.
